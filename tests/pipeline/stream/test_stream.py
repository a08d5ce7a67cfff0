"""Windows straight from the sources: what a run packs, in other rows; encoded once for all streams."""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.pipeline.inputs.blocks import Block, InputFile
from packtrain.pipeline.stream.live_windows import LiveWindows
from packtrain.pipeline.stream.window import Blocks
from packtrain.schemas.errors import InputError

from tests import kit

MakeConfig = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of sources, with twenty rows a file, and of the cache that the tests of this file share."""
    folder = tmp_path_factory.mktemp("live")
    for kind, count in (("texts", 240), ("chats", 120), ("apps", 80)):
        rows = kit.corpus(kind, count)
        for begin in range(0, count, 20):
            file = kit.write(folder / kind / f"rows-{begin:03}.jsonl", rows[begin : begin + 20])
            if kind == "texts":
                file.write_bytes(file.read_bytes() + b'not json\n\n{"text": ""}\n')
    return folder


@pytest.fixture(scope="module")
def make(data: Path) -> MakeConfig:
    """A configuration of these sources, with other keys."""

    def config(**more: Any) -> dict[str, Any]:
        sources = [kit.source(kind, path=str(data / kind)) for kind in ("texts", "chats", "apps")]
        return kit.configure(data, *sources, tokenizer={"engine": "tokenizers"}, **more)

    return config


@given(
    sizes=st.lists(st.lists(st.integers(1, 100), min_size=1, max_size=12), min_size=1, max_size=6),
    sources=st.integers(1, 3),
    limit=st.integers(1, 300),
    seed=st.integers(0, 2**63 - 1),
)
def test_windows_hold_every_block_once(sizes: list[list[int]], sources: int, limit: int, seed: int) -> None:
    blocks = Blocks(bare_files(sizes, sources), limit, seed)
    size_of = [size for file in sizes for size in file]
    for epoch in (0, 1):
        windows = blocks.windows(epoch)
        assert sorted(np.concatenate(windows).tolist()) == list(range(len(size_of)))
        for window in windows:
            assert sum(size_of[block] for block in window) <= limit or len(window) == 1
            picked = [block for file in blocks.select(window) for block in file.blocks]
            assert [block.end - block.start for block in picked] == [size_of[block] for block in window]


def test_every_window_holds_every_source_by_its_share() -> None:
    blocks = Blocks(bare_files([[10] * 60, [10] * 30, [10] * 10], 3), 200, 5)
    for epoch in range(3):
        for window in blocks.windows(epoch):
            counts = [int(((window >= low) & (window < high)).sum()) for low, high in ((0, 60), (60, 90), (90, 100))]
            assert np.abs(np.array(counts) - (12, 6, 2)).max() <= 1


def bare_files(sizes: list[list[int]], sources: int) -> list[InputFile]:
    """Files of blocks of so many bytes; nothing stands on the disk."""
    files = []
    for number, file in enumerate(sizes):
        ends = np.cumsum(file).tolist()
        blocks = tuple(Block(end - size, end, 0, 1, "") for size, end in zip(file, ends, strict=True))
        source = f"source-{number * sources // len(sizes)}"
        files.append(InputFile(source, f"file-{number}", Path(f"file-{number}"), ends[-1], "", blocks))
    return files


def test_a_file_that_changes_meanwhile_is_refused(
    tmp_path: Path, make: MakeConfig, live: Callable[..., LiveWindows]
) -> None:
    paths = [tmp_path / f"{n}.jsonl" for n in range(3)]
    for number, path in enumerate(paths):
        path.write_text(json.dumps({"text": f"{tmp_path} {number} once"}) + "\n")
    config = make(sources=[{"name": "texts", "format": "text", "path": [str(path) for path in paths]}])
    windows = live(config, window_bytes=1)
    for path in paths:
        path.write_text(path.read_text().replace("once", "then"))
    with pytest.raises(InputError, match="changed while it was read"):
        list(windows.walk(0, 0, 1))


def test_a_fingerprint_says_what_differs(tmp_path: Path, make: MakeConfig, live: Callable[..., LiveWindows]) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "one row"}\n')
    source = [{"name": "texts", "format": "text", "path": str(file)}]
    config = make(sources=source)
    first = live(config).fingerprint

    def differing(changed: dict[str, Any], **more: Any) -> list[str]:
        other = live(changed, **more).fingerprint
        return [name for name in first if first[name] != other[name]]

    assert differing(config, workers=3, seed=9) == []
    assert differing({**config, "out": str(tmp_path / "x"), "output": {"shard_bytes": "1MiB"}}) == []
    assert differing({**config, "mask": "all"}) == ["config"]
    assert differing(config, window_bytes=24_001) == ["windows"]
    assert differing({**config, "tokenizer": {**config["tokenizer"], "trace": False}}) == ["encode"]
    # Other content of the same size, its time set back: the scan's note is not believed.
    before = file.stat()
    file.write_text('{"text": "two row"}\n')
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert differing(config) == ["inputs"]
    file.write_text('{"text": "one row"}\n')
    assert differing(config) == []


def test_a_walk_that_is_left_stops_its_work(make: MakeConfig, live: Callable[..., LiveWindows]) -> None:
    windows = live(make(), workers=2)
    walk = windows.walk(0, 0, 50)
    next(walk)
    assert any(thread.name.startswith("packtrain-live") for thread in threading.enumerate())
    windows.stop()
    assert not any(thread.name.startswith("packtrain-live") for thread in threading.enumerate())
    assert next(windows.walk(0, 1, 1)).number == 1


@pytest.mark.slow
def test_memory_does_not_grow_with_the_windows(tmp_path: Path, tiny_tokenizer: Path) -> None:
    file = tmp_path / "big.jsonl"
    rng = np.random.default_rng(0)
    with file.open("w") as out:
        for i in range(15_000):
            out.write(json.dumps({"text": f"{i} " + "word and number " * int(rng.integers(1, 160))}) + "\n")
    assert file.stat().st_size > 16 << 20
    config = {
        "out": str(tmp_path / "data"),
        "tokenizer": {"path": str(tiny_tokenizer), "engine": "tokenizers"},
        "sources": [{"name": "texts", "format": "text", "path": str(file)}],
        "truncate": {"max_length": 1024},
    }
    windows = LiveWindows(config, window_bytes=2 << 20, workers=2)
    anonymous = []
    for window in windows.walk(0, 0, 3):
        for row in range(0, window.rows - 8, 8):
            window.lay_out(row, row + 8)
        anonymous.append(_anonymous_bytes())
    count = windows.count(0)
    windows.close()
    assert count >= 4
    assert len(anonymous) == sum(windows.count(epoch) for epoch in range(3))
    # After the third window all that is kept is there; from then on nothing may be added but noise.
    assert max(anonymous[3:]) - min(anonymous[2:4]) < 24 << 20, [size >> 20 for size in anonymous]


def _anonymous_bytes() -> int:
    """Memory of this process that is not backed by a file."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024
