"""The stream: every row once, the same steps on any number of ranks, and exact resumption, without stored shards."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.stream.live_windows import LiveWindows
from packtrain.pipeline.stream.window import PlannedWindow
from packtrain.schemas.config.config import RunConfig
from packtrain.schemas.errors import ConfigError, IntegrityError
from packtrain.training import PackedStream

from tests import kit
from tests.support.resumption import Shape, check_resumption

WINDOW = 8_000
"""Bytes: a handful of windows an epoch."""
Batch = dict[str, Any]
Open = Callable[..., PackedStream]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Path) -> dict[str, Any]:
    """Nine small files, so nine blocks, of two sources; documents of very different lengths, some rows useless."""
    folder = tmp_path_factory.mktemp("stream")
    for number in range(9):
        rows = [{"text": f"{number} {i} " + "word and " * (i * i % 71)} for i in range(16)]
        if number < 4:
            rows = [{"prompt": f"{number} {i}?", "completion": "yes " * (1 + i * i % 53)} for i in range(20)]
        lines = [json.dumps(row) for row in rows]
        (folder / f"{number}.jsonl").write_text("\n".join([*lines, "[]"]) + "\n")
    pairs, texts = ([str(folder / f"{n}.jsonl") for n in numbers] for numbers in (range(4), range(4, 9)))
    sources = {**kit.source("pairs"), "path": pairs}, {**kit.source("texts"), "path": texts}
    return kit.configure(folder, *sources, tokenizer={"engine": "tokenizers"})


@pytest.fixture
def stream(config: dict[str, Any]) -> Iterator[Open]:
    """Opens a stream with one worker, rank 0 of 1; closed at the end."""
    opened = []

    def open_stream(data: Any = None, **more: Any) -> PackedStream:
        options = {"rows_per_step": 4, "window_bytes": WINDOW, "workers": 1, "rank": 0, "world_size": 1}
        opened.append(PackedStream(data or config, **{**options, **more}))
        return opened[-1]

    yield open_stream
    for one in opened:
        one.close()


class Replayed:
    """The windows of two epochs, planned once, to be walked by many streams."""

    def __init__(self, windows: LiveWindows) -> None:
        self.seed, self.fingerprint = windows.seed, windows.fingerprint
        self._windows = list(windows.walk(0, 0, 2))

    def walk(self, epoch: int, number: int, epochs: int) -> Iterator[PlannedWindow]:
        """See `LiveWindows.walk`."""
        return (one for one in self._windows if (epoch, number) <= (one.epoch, one.number) < (epochs, 0))

    def stop(self) -> None:
        """See `LiveWindows.stop`."""

    def close(self) -> None:
        """See `LiveWindows.close`."""


@pytest.fixture(scope="module")
def replayed(config: dict[str, Any]) -> Replayed:
    """What `config` gives."""
    windows = LiveWindows(RunConfig.model_validate(config), window_bytes=WINDOW, workers=1)
    try:
        return Replayed(windows)
    finally:
        windows.close()


def documents(batch: Batch) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(tokens, labels) of every document of a batch, in order."""
    ids, labels, bounds = batch["input_ids"][0].tolist(), batch["labels"][0].tolist(), batch["cu_seq_lens_q"].tolist()
    return [(tuple(ids[a:b]), tuple(labels[a:b])) for a, b in pairwise(bounds)]


def all_documents(batches: list[Batch]) -> "Counter[tuple[tuple[int, ...], tuple[int, ...]]]":
    """How often each document stands in batches."""
    return Counter(document for batch in batches for document in documents(batch))


def flat(batches: list[Batch]) -> list[int]:
    """All tokens and labels, one after another."""
    return [value for name in ("input_ids", "labels") for batch in batches for value in batch[name][0].tolist()]


def test_the_account_is_of_the_windows_begun(stream: Open) -> None:
    live = stream()
    assert live.ledger.sources == {}
    read = []
    for _ in live:
        live.ledger.check()
        read.append(live.ledger.total().rows_read)
    assert read == sorted(read)
    assert len(set(read)) > 3
    assert live.ledger.total().rows_read == 4 * 21 + 5 * 17
    assert sum(live.ledger.total().rows_rejected.values()) == 9


def test_two_epochs_count_twice_and_differ(stream: Open) -> None:
    once, twice = stream(rows_per_step=1), stream(rows_per_step=1, epochs=2)
    first, both = list(once), list(twice)
    assert flat(both[: len(first)]) == flat(first)
    assert flat(both[len(first) :]) != flat(first)
    assert all_documents(both[len(first) :]) == all_documents(first)
    assert twice.ledger.total().tokens_packed == 2 * once.ledger.total().tokens_packed
    twice.ledger.check()


@pytest.mark.parametrize("tail", ["pad", pytest.param("drop", marks=pytest.mark.slow)])
def test_a_step_is_the_same_on_any_ranks_wherever_they_resume(
    stream: Open, replayed: Replayed, tail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(rank: int, shape: Shape) -> PackedStream:
        # What is not replayed is planned again, which takes longer.
        opened = LiveWindows if shape == Shape(1, 20) else lambda *_, **__: replayed
        monkeypatch.setattr("packtrain.pipeline.stream.live_windows.LiveWindows", opened)
        options = {"rows_per_step": shape.rows_per_step, "rank": rank, "world_size": shape.world_size}
        return stream(epochs=2, tail=tail, **options)

    check_resumption(make, [Shape(1, 20), Shape(2, 4), Shape(3, 6)], every=8)


def test_a_state_of_another_stream_is_refused(config: dict[str, Any], stream: Open, tmp_path: Path) -> None:
    live = stream()
    next(iter(live))
    state = live.state_dict()
    stream(rows_per_step=3, epochs=7, tail="pad").load_state_dict(state)
    changed = tmp_path / "changed.jsonl"
    changed.write_bytes(Path(config["sources"][0]["path"][0]).read_bytes() + b'{"prompt": "a", "completion": "b"}\n')
    others = {
        "seed": stream(seed=1),
        "windows": stream(window_bytes=WINDOW + 1),
        "config": stream({**config, "mask": "all"}),
        "inputs": stream(
            {**config, "sources": [{**config["sources"][0], "path": str(changed)}, *config["sources"][1:]]}
        ),
    }
    for what, other in others.items():
        with pytest.raises(ValueError, match=f"{what} differs"):
            other.load_state_dict(state)
    with pytest.raises(ValueError, match="format differs: here it is 3, in the state 7"):
        live.load_state_dict({**state, "format": 7})
    with pytest.raises(ValueError, match="the state of a PackedStream does not fit"):
        live.load_state_dict({"format": 3, "epoch": 3})
    for change in ({"rows": -1}, {"window": 10**30}, {"epoch": "1"}, {"seed": ["a"]}, {"row": None}):
        with pytest.raises(ConfigError, match=f"does not fit: {next(iter(change))} differs"):
            live.load_state_dict({**state, **change})
    live.load_state_dict({**state, "row": 10**6})
    with pytest.raises(IntegrityError, match="rows, but the state is at row 1,000,000"):
        next(iter(live))
