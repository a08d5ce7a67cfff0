"""Blocks: whole lines, every byte once, and where one begins depends only on the bytes before it."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.pipeline.inputs import scan as sources
from packtrain.pipeline.inputs.blocks import InputFile
from packtrain.pipeline.inputs.find import unique_labels
from packtrain.pipeline.inputs.read import read_rows
from packtrain.pipeline.inputs.scan import scan_file
from packtrain.schemas.config.config import SourceConfig
from packtrain.schemas.fingerprint import hash_bytes

BOM = b"\xef\xbb\xbf"
MAX = 24

# Newlines often, and lines shorter and longer than a block of 8 bytes, and than MAX.
contents = st.lists(st.sampled_from([b"\n", b"a", b"bc", b"\r\n", BOM, b"0123456", b"x" * 30]), min_size=1).map(
    b"".join
)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "BLOCK_BYTES", 8)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def scan(folder: Path, data: bytes, max_row_bytes: int = MAX) -> InputFile:
    path = folder / "in.jsonl"
    path.write_bytes(data)
    return scan_file("source", path, max_row_bytes, folder / "cache")


def body(data: bytes) -> bytes:
    return data.removeprefix(BOM)


@given(data=contents)
def test_blocks_tile_the_file_in_whole_lines(folder: Path, data: bytes) -> None:
    if not body(data):
        return
    file = scan(folder, data)
    lines = 0
    position = len(data) - len(body(data))
    for block in file.blocks:
        piece = data[block.start : block.end]
        assert block.start == position
        assert block.end > block.start
        assert block.first_line == lines
        assert block.hash == hash_bytes(piece)
        assert block.lines == len(piece.split(b"\n")) - piece.endswith(b"\n")
        assert len(piece) <= 8 or block.lines == 1, "only one line may be longer than a block"
        assert block.too_long == (len(piece) > 8 and len(piece.removesuffix(b"\n")) > MAX)
        assert piece.endswith(b"\n") or block is file.blocks[-1]
        lines += block.lines
        position = block.end
    assert position == len(data)
    assert (file.size, file.hash, file.lines) == (len(data), hash_bytes(data), lines)
    assert lines == len(body(data).split(b"\n")) - data.endswith(b"\n")


@given(data=contents, more=contents)
def test_appended_data_leaves_all_but_the_last_block(folder: Path, data: bytes, more: bytes) -> None:
    if not body(data):
        return
    before, after = scan(folder, data).blocks, scan(folder, data + more).blocks
    assert after[: len(before) - 1] == before[:-1]


@given(data=contents)
def test_every_line_is_read_once_or_told_to_be_too_long(folder: Path, data: bytes) -> None:
    if not body(data):
        return
    file = scan(folder, data)
    found: dict[int, bytes] = {}
    rejected: list[int] = []
    for block in file.blocks:
        rows = read_rows(block, MAX)
        found |= {block.first_line + number: line for number, line in rows.lines or ()}
        rejected += [block.first_line + number for number, _, _ in rows.rejects]
    expected = dict(enumerate(body(data).split(b"\n")))
    if data.endswith(b"\n"):
        del expected[len(expected) - 1]
    assert found == {number: line for number, line in expected.items() if len(line) <= MAX}
    assert rejected == [number for number, line in expected.items() if len(line) > MAX]


def source(*paths: object) -> SourceConfig:
    data: dict[str, Any] = {"name": "chat", "format": "text", "path": [str(path) for path in paths]}
    return SourceConfig.model_validate(data)


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["/data/a.jsonl"], ["a"]),
        (["/data/a.jsonl", "/data/b.jsonl"], ["a", "b"]),
        (["/data/x/a.jsonl", "/data/y/a.jsonl"], ["x/a", "y/a"]),
        (["/x/d/a.jsonl", "/y/d/a.jsonl", "/y/d/b.jsonl"], ["x/d/a", "y/d/a", "y/d/b"]),
        (["/data/a.jsonl", "/data/a.json"], ["a.jsonl", "a.json"]),
        (["/data/x/a.jsonl", "/data/x/a.json", "/data/y/a.json"], ["x/a.jsonl", "x/a.json", "y/a.json"]),
    ],
)
def test_labels_tell_files_apart_and_no_more(paths: list[str], expected: list[str]) -> None:
    assert unique_labels(paths) == expected
