"""Small inputs that unpack to much: they are read in bounded memory, a row at a time, or refused."""

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packtrain.pipeline.inputs import tables
from packtrain.pipeline.inputs.read import read_rows
from packtrain.pipeline.inputs.scan import BLOCK_BYTES, scan_file
from packtrain.schemas.errors import InputError

ROW_BYTES = 16 << 20
TEXT = "x" * 100_000
COLUMNS: dict[str, tuple[Any, Any]] = {
    "a text": (TEXT, pa.string()),
    "a message": ([{"role": "user", "content": TEXT}], None),
    "bytes": (TEXT.encode(), pa.binary()),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_values_that_parquet_stores_once_are_read_a_few_at_a_time(tmp_path: Path, name: str) -> None:
    value, kind = COLUMNS[name]
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": pa.array([value] * 2_000, kind), "n": range(2_000)}), path)
    assert path.stat().st_size < 100_000
    blocks = scan_file("s", path, ROW_BYTES, tmp_path / "cache").blocks
    assert sum(block.lines for block in blocks) == 2_000
    assert max(block.end - block.start for block in blocks) <= 2 * BLOCK_BYTES
    rows = [row for block in blocks for _, row in read_rows(block, ROW_BYTES).records]
    assert [row["n"] for row in rows] == [*range(2_000)]
    assert all(row["a"] == value for row in rows)


def test_ordinary_parquet_is_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": [f"{number} {'x' * 200}" for number in range(20_000)]}), path)
    blocks = scan_file("s", path, ROW_BYTES, tmp_path / "cache").blocks
    assert {block.kind for block in blocks} == {"groups"}


def test_values_that_arrow_stores_once_count_as_often_as_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 1_000, pa.int32()), pa.array([TEXT]))
    with pa.ipc.new_stream(path, pa.schema([("a", column.type)])) as stream:
        stream.write_table(pa.table({"a": column}))
    blocks = scan_file("s", path, ROW_BYTES, tmp_path / "cache").blocks
    assert sum(block.lines for block in blocks) == 1_000
    assert max(block.end - block.start for block in blocks) <= 2 * BLOCK_BYTES
    assert all(row["a"] == TEXT for block in blocks for _, row in read_rows(block, ROW_BYTES).records)


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
@pytest.mark.parametrize("new", [pa.ipc.new_file, pa.ipc.new_stream])
def test_a_record_batch_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, codec: str, new: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.arrow"
    table = pa.table({"a": ["x" * 1_000] * 3_000})
    with new(path, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as file:
        file.write_table(table)
    assert scan_file("s", path, ROW_BYTES, tmp_path / "cache").lines == 3_000
    monkeypatch.setattr(tables, "MAX_UNPACKED_BYTES", 1 << 20)
    with pytest.raises(InputError, match=r"unpacks to 3,0\d\d,\d{3} bytes"):
        scan_file("s", path, ROW_BYTES, tmp_path / "cache")


def test_rows_without_bytes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    with pa.ipc.new_stream(path, pa.schema([("a", pa.null())])) as stream:
        stream.write_batch(pa.record_batch({"a": pa.nulls(1 << 28)}))
    with pytest.raises(InputError, match="says that it has 268,435,456 rows"):
        scan_file("s", path, ROW_BYTES, tmp_path / "cache")


@pytest.mark.parametrize("begin", [b'[{"text": "', b'[["'])
def test_a_long_element_of_an_array_is_a_rejected_row(tmp_path: Path, begin: bytes) -> None:
    path = tmp_path / "x.json.gz"
    ends = {b"{": b'"}', b"[": b'"]'}
    path.write_bytes(gzip.compress(begin + b"x" * 5_000_000 + ends[begin[1:2]] + b', {"text": "y"}]'))
    (block,) = scan_file("s", path, 1 << 20, tmp_path / "cache").blocks
    rows = read_rows(block, 1 << 20)
    assert [reason for _, reason, _ in rows.rejects] == ["row_too_long"]
    assert [line for _, line in rows.lines] == [b'{"text": "y"}']
