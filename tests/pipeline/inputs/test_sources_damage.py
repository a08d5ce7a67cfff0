"""Files that are cut short, damaged, misnamed or changed: an error that names the file and the fix, never fewer
rows."""

import gzip
import json
import random
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packtrain.pipeline.inputs import scan as sources
from packtrain.pipeline.inputs.blocks import InputFile
from packtrain.pipeline.inputs.read import block_examples, read_rows
from packtrain.pipeline.inputs.scan import scan_file
from packtrain.schemas.errors import InputError, StoreError
from packtrain.stages.prep import Options

ROWS = [{"text": f"{number} " + "mules left the valley " * (number % 7)} for number in range(400)]
LINES = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "BLOCK_BYTES", 4000)


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


def arrow(make: Callable[..., Any]) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.Table.from_pylist(ROWS)
    with make(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=50)
    return bytes(sink.getvalue())


def parquet(**options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(ROWS), sink, row_group_size=50, **options)
    return bytes(sink.getvalue())


FILES: dict[str, bytes] = {
    "in.jsonl.gz": gzip.compress(LINES, mtime=0),
    "in.jsonl.zst": zstd(LINES),
    "in.parquet": parquet(),
    "plain.parquet": parquet(compression="none", use_dictionary=False),
    "in.arrow": arrow(pa.ipc.new_file),
    "in.arrows": arrow(pa.ipc.new_stream),
}


def scan(path: Path) -> InputFile:
    return scan_file("one", path, 1 << 20, path.parent / "cache")


def texts(file: InputFile) -> list[str | None]:
    made = [block_examples(block, ("text", Options()), 1 << 20) for block in file.blocks]
    return [example.text for prepared in made for example in prepared.examples]


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_cut_short_is_refused(name: str, tmp_path: Path) -> None:
    """Wherever it was cut, between record batches as well."""
    path, data = tmp_path / name, FILES[name]
    path.write_bytes(data)
    assert texts(scan(path)) == [row["text"] for row in ROWS]
    places = {*range(16, len(data), len(data) // 16), len(data) - 1, len(data) - 4, len(data) - 8}
    if name == "in.arrows":
        with pa.memory_map(str(path)) as source:
            messages = pa.ipc.MessageReader.open_stream(source)
            ends = [source.tell() for _ in messages]
        places |= {*ends}
        assert len(ends) == 9
    for place in sorted(places):
        path.write_bytes(data[:place])
        with pytest.raises(InputError) as caught:
            scan(path)
        assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_ends_in_an_error_or_in_rows(name: str, tmp_path: Path) -> None:
    """Not every container can tell; but none may end the process, or raise an unreadable error."""
    path, data = tmp_path / name, FILES[name]
    chance = random.Random(7)
    refused: list[str] = []
    for _ in range(60):
        broken = bytearray(data)
        broken[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(broken)
        try:
            texts(scan(path))
        except InputError as error:
            refused.append(str(error))
    assert len(refused) >= 3
    assert all(str(path) in said for said in refused)


def test_rows_of_csv_that_cannot_be_used(tmp_path: Path) -> None:
    data = b'prompt,completion\na,b\nc\n\nd,"e"f\n"g,""\n",h\ni,\xff\nj,k,l\n'
    (tmp_path / "in.csv").write_bytes(data)
    file = scan(tmp_path / "in.csv")
    (block,) = file.blocks
    prepared = block_examples(block, ("prompt_completion", Options()), 1 << 20)
    assert [(line, reason) for line, reason, _ in prepared.rejects] == [
        (1, "wrong_columns"),
        (3, "bad_quotes"),
        (5, "invalid_utf8"),
        (6, "wrong_columns"),
    ]
    assert prepared.rejects[0][2] == "the row has 1 fields, but the header names 2"
    assert [(one.line, one.prompt, one.completion) for one in prepared.examples] == [(0, "a", "b"), (4, 'g,"\n', "h")]
    assert (prepared.rows, prepared.blank, block.lines) == (6, 1, 7)


def test_a_text_that_is_not_utf8_costs_its_row(tmp_path: Path) -> None:
    raw = pa.array([b"good", b"\xff\xfe", b"also good"], pa.binary())
    table = pa.table({"text": raw.view(pa.string())})
    with pa.ipc.new_file(str(tmp_path / "in.arrow"), table.schema) as writer:
        writer.write_table(table)
    pq.write_table(table, tmp_path / "in.parquet")
    for name in ("in.arrow", "in.parquet"):
        file = scan(tmp_path / name)
        (block,) = file.blocks
        prepared = block_examples(block, ("text", Options()), 1 << 20)
        assert [example.text for example in prepared.examples] == ["good", "also good"]
        assert [(line, reason) for line, reason, _ in prepared.rejects] == [(1, "invalid_utf8")]


def test_a_file_that_changes_after_the_scan(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    data = FILES["in.parquet"]
    path.write_bytes(data)
    file = scan(path)
    block = file.blocks[-1]
    place = len(data) // 2
    path.write_bytes(data[:place] + b"M" + data[place + 1 :])

    def read() -> None:
        for block in file.blocks:
            read_rows(block, 1 << 20)

    with pytest.raises(InputError):
        read()
    path.unlink()
    with pytest.raises(InputError):
        read_rows(block, 1 << 20)


def test_a_full_disk_is_no_fault_of_the_input(tmp_path: Path) -> None:
    """Whatever is kept in the cache of an input; files are limited here as a disk would limit them."""
    for name in ("in.jsonl.gz", "in.json", "in.csv"):
        rows = [{"text": f"{number} {number**40}"} for number in range(3000)]
        text = json.dumps(rows) if name == "in.json" else "text\n" + "".join(f"{row['text']}\n" for row in rows)
        data = "".join(json.dumps(row) + "\n" for row in rows).encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else text.encode())
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        try:
            with pytest.raises(StoreError) as caught:
                scan(tmp_path / name)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)
        assert caught.value.exit_code == 1


def test_large_row_groups_are_kept_row_by_row(tmp_path: Path) -> None:
    """A row group of a hundred blocks is decoded once, and its rows lie in blocks of the usual size."""
    rows = [{"text": f"{number} " + "x" * (number % 300)} for number in range(3000)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet")
    file = scan(tmp_path / "in.parquet")
    assert len(file.blocks) > 40
    assert max(block.end - block.start for block in file.blocks) < 4000 + 64 * 300
    assert all(block.spooled is not None for block in file.blocks)
    assert texts(file) == [row["text"] for row in rows]
    (tmp_path / "in.parquet").unlink()
    assert texts(file) == [row["text"] for row in rows]
