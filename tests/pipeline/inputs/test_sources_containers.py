"""The same rows in every container: the same examples at the same lines; rows that are appended are new blocks."""

import csv
import gzip
import io
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from packtrain.pipeline.inputs import scan as sources
from packtrain.pipeline.inputs.scan import InputFile, prepare_block, read_rows, sample_rows, scan_source
from packtrain.schemas.config.config import SourceConfig
from packtrain.stages.prep import make_format

from tests.support.examples import examples

Row = dict[str, Any]
Write = Callable[[Path, list[Row]], Path]
"""Writes rows below a folder; returns what `path` names."""


def jsonl(rows: list[Row]) -> bytes:
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


def array(rows: list[Row], indent: int | None = None) -> bytes:
    return json.dumps(rows, ensure_ascii=False, indent=indent).encode()


def zstd(data: bytes) -> bytes:
    """Compressed as the command-line tool does it: by a stream, without its size in the header."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


def to_file(name: str, encode: Callable[[list[Row]], bytes]) -> Write:
    def write(folder: Path, rows: list[Row]) -> Path:
        (folder / name).write_bytes(encode(rows))
        return folder / name

    return write


def parquet(**options: Any) -> Write:
    def write(folder: Path, rows: list[Row]) -> Path:
        pq.write_table(pa.Table.from_pylist(rows), folder / "in.parquet", **options)
        return folder / "in.parquet"

    return write


def arrow(kind: str, batch_rows: int, dictionary: bool = False, **options: Any) -> Write:
    def write(folder: Path, rows: list[Row]) -> Path:
        table = pa.Table.from_pylist(rows)
        if dictionary:
            for index, field in enumerate(table.schema):
                if field.type == pa.string():
                    table = table.set_column(index, field.name, table.column(index).dictionary_encode())
        make = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
        path = folder / "in.arrow"
        with make(str(path), table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
            writer.write_table(table, max_chunksize=batch_rows)
        return path

    return write


def saved(folder: Path, rows: list[Row]) -> Path:
    import datasets

    table = pa.Table.from_pylist(rows)
    datasets.Dataset(datasets.table.InMemoryTable(table)).save_to_disk(folder / "in", num_shards=1)
    return folder / "in"


def two_members(data: bytes) -> bytes:
    """What `cat a.gz b.gz` gives."""
    return gzip.compress(data[: len(data) // 2]) + gzip.compress(data[len(data) // 2 :])


LINES: dict[str, Write] = {
    "jsonl": to_file("in.jsonl", jsonl),
    "gz": to_file("in.jsonl.gz", lambda rows: gzip.compress(jsonl(rows))),
    "gz, two members": to_file("in.jsonl.gz", lambda rows: two_members(jsonl(rows))),
    "zst": to_file("in.jsonl.zst", lambda rows: zstd(jsonl(rows))),
    "zst under another name": to_file("in.json", lambda rows: zstd(jsonl(rows))),
    "json array": to_file("in.json", lambda rows: array(rows)),
    "json array, gz": to_file("in.json.gz", lambda rows: gzip.compress(array(rows))),
    "json array, zst": to_file("in.json.zst", lambda rows: zstd(b"\xef\xbb\xbf" + array(rows))),
}
INDENTED: dict[str, Write] = {
    "json array, indented": to_file("in.json", lambda rows: array(rows, 2)),
    "json array, indented, line ends of Windows": to_file(
        "in.json.gz", lambda rows: gzip.compress(array(rows, 4).replace(b"\n", b"\r\n") + b"\r\n\r\n")
    ),
}
TABLES: dict[str, Write] = {
    "parquet": parquet(),
    "parquet, row groups of 3": parquet(row_group_size=3, compression="zstd"),
    "parquet, rows apart": parquet(row_group_size=100_000, use_dictionary=False, compression="none"),
    "arrow file": arrow("file", 5),
    "arrow stream": arrow("stream", 1000),
    "arrow stream, compressed": arrow("stream", 100, compression="lz4"),
    "arrow file with dictionaries": arrow("file", 7, dictionary=True),
    "arrow stream with dictionaries": arrow("stream", 4, dictionary=True),
    "save_to_disk": saved,
}


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def scan(path: Path, folder: Path, form: str, **more: Any) -> list[InputFile]:
    data = {"name": "one", "format": form, "path": str(path), **more}
    return scan_source(SourceConfig.model_validate(data), folder, folder / "cache")


def examples_of(files: list[InputFile], form: str) -> list[Any]:
    """(label, row, prompt, completion, text, tools, rejected) of all examples; no row may be rejected."""
    made = make_format(form)
    out = []
    for file in files:
        for block in file.blocks:
            prepared = prepare_block(file.where(block), block, made, 1 << 20)
            assert not prepared.rejects
            assert prepared.rows == block.lines
            out += [
                (file.label, block.first_line + one.line, one.prompt, one.completion, one.text, one.tools, one.rejected)
                for one in prepared.examples
            ]
    return out


def tiles(files: list[InputFile]) -> int:
    """Every row stands in one block; returns the number of blocks."""
    for file in files:
        line = 0
        for block in file.blocks:
            assert block.first_line == line
            line += block.lines
        assert file.lines == line
    return sum(len(file.blocks) for file in files)


words = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=30)
call = st.fixed_dictionaries(
    {"type": st.just("function"), "function": st.fixed_dictionaries({"name": words, "arguments": words})}
)
question = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user"]), "content": words}, optional={"name": words}
)
answer = st.fixed_dictionaries({"role": st.just("assistant"), "content": words}, optional={"train": st.booleans()})
calling = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": st.none(), "tool_calls": st.lists(call, min_size=1, max_size=2)}
)
# The first row has every key, so that no column of a table is without a type.
full: Row = {
    "messages": [
        {"role": "user", "content": "a", "name": "b"},
        {
            "role": "assistant",
            "content": "c",
            "train": True,
            "tool_calls": [{"type": "function", "function": {"name": "d", "arguments": "e"}}],
        },
    ],
    "tools": None,
    "extra": 7,
}
conversations = st.lists(
    st.fixed_dictionaries(
        {
            "messages": st.lists(st.one_of(question, answer, calling), min_size=1, max_size=4),
            "tools": st.none() | st.just('[{"type": "function", "function": {"name": "f"}}]'),
            "extra": st.integers(0, 9),
        }
    ),
    max_size=30,
).map(lambda rows: [full, *rows])


@pytest.mark.slow
@pytest.mark.parametrize("size", [150, 4000])
@examples(8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=conversations)
def test_conversations_are_the_same_in_every_container(size: int, rows: list[Row], monkeypatch: Any) -> None:
    monkeypatch.setattr(sources, "BLOCK_BYTES", size)
    expected: list[Any] | None = None
    for name, write in {**LINES, **INDENTED, **TABLES}.items():
        with tempfile.TemporaryDirectory() as place:
            path = write(Path(place), rows)
            files = scan(path, Path(place), "messages")
            tiles(files)
            found = examples_of(files, "messages")
        if name == "save_to_disk":
            found = [("in", *one[1:]) for one in found]  # its file has a name that the library gave it
        expected = expected or found
        assert found == expected, name
    assert expected is not None
    assert len(expected) == len(rows)


# Python's writer leaves a carriage return alone without quotes, which nobody's reader takes for data.
fields = st.text(st.characters(codec="utf-8", exclude_characters="\x00\r"), min_size=1, max_size=30)
pairs = st.lists(
    st.fixed_dictionaries({"completion": fields, "prompt": fields, "more": st.text("ab\",\n'\\", max_size=9)}),
    min_size=1,
    max_size=25,
)


def separated(separator: str, line_end: str, quoting: Literal[0, 1]) -> Callable[[list[Row]], bytes]:
    def encode(rows: list[Row]) -> bytes:
        sink = io.StringIO()
        writer = csv.DictWriter(
            sink, ["completion", "prompt", "more"], delimiter=separator, lineterminator=line_end, quoting=quoting
        )
        writer.writeheader()
        writer.writerows(rows)
        return sink.getvalue().encode()

    return encode


COMMA = separated(",", "\n", csv.QUOTE_MINIMAL)
CSVS: dict[str, Write] = {
    "csv": to_file("in.csv", COMMA),
    "csv as on Windows": to_file("in.csv", lambda rows: b"\xef\xbb\xbf" + separated(",", "\r\n", csv.QUOTE_ALL)(rows)),
    "csv without a last line end": to_file("in.csv", lambda rows: COMMA(rows)[:-1]),
    "tsv": to_file("in.tsv", separated("\t", "\n", csv.QUOTE_MINIMAL)),
    "csv.gz": to_file("in.csv.gz", lambda rows: gzip.compress(COMMA(rows))),
    "csv.zst": to_file("in.csv.zst", lambda rows: zstd(COMMA(rows))),
}


@pytest.mark.parametrize("size", [30, 200, 4000])
@examples(15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=pairs)
def test_texts_are_the_same_in_csv(size: int, rows: list[Row], monkeypatch: Any) -> None:
    monkeypatch.setattr(sources, "BLOCK_BYTES", size)
    expected = [("in", number, row["prompt"], row["completion"], None, None, None) for number, row in enumerate(rows)]
    for name, write in {"jsonl": LINES["jsonl"], **CSVS}.items():
        with tempfile.TemporaryDirectory() as place:
            files = scan(write(Path(place), rows), Path(place), "prompt_completion")
            tiles(files)
            assert examples_of(files, "prompt_completion") == expected, name


@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("preference", "preference/dpo_pairs"),
        ("messages", "chat/sgd_dev"),
        ("messages", "chat/tau_bench_gpt4o_airline"),
        ("apps", "apps/train"),
        ("text", "longdoc/peps"),
    ],
)
def test_real_rows_are_the_same_in_tables(form: str, name: str, realdata: Path, folder: Path) -> None:
    """Tools, calls, contents that are null, and columns that nobody asked for."""
    lines = (realdata / f"{name}.jsonl").read_text().split("\n")[:400]
    rows = [json.loads(line) for line in lines if line]
    found = []
    for number, write in enumerate((LINES["zst"], parquet(row_group_size=60), arrow("stream", 1000))):
        (folder / f"{number}").mkdir()
        found.append(examples_of(scan(write(folder / f"{number}", rows), folder, form), form))
    assert found[0] == found[1] == found[2]
    assert len(found[0]) >= 150


def test_compressed_lines_are_the_blocks_of_plain_ones(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Same hashes, so the same encoded parts, whatever was compressed by what."""
    monkeypatch.setattr(sources, "BLOCK_BYTES", 300)
    rows = [{"text": f"{number} " + "x" * (number * 37 % 500)} for number in range(200)]
    hashes = set()
    for number, write in enumerate(LINES.values()):
        (folder / f"{number}").mkdir()
        (file,) = scan(write(folder / f"{number}", rows), folder, "text", max_row_bytes=1024)
        assert tiles([file]) > 50
        hashes.add(tuple((block.start, block.end, block.first_line, block.lines, block.hash) for block in file.blocks))
        assert file.path.suffix in file.shown
    assert len(hashes) == 1


def test_long_rows_of_compressed_lines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than a block, and longer than a row may be: as in a plain file, and in bounded memory."""
    monkeypatch.setattr(sources, "BLOCK_BYTES", 100)
    rows = [{"text": "a"}, {"text": "b" * 700}, {"text": "c" * 5000}, {"text": "d"}]
    found = []
    for name in ("jsonl", "gz", "zst"):
        (file,) = scan(LINES[name](folder, rows), folder, "text", max_row_bytes=1024)
        prepared = [prepare_block(file.where(block), block, make_format("text"), 1024) for block in file.blocks]
        found.append([(one.rejects, [example.text for example in one.examples]) for one in prepared])
    assert found[0] == found[1] == found[2]
    assert [len(rejects) for rejects, _ in found[0]] == [0, 0, 1, 0]
    assert found[0][2][0][0][1] == "row_too_long"


APPENDED: dict[str, Write] = {
    **LINES,
    "parquet, row groups of 3": TABLES["parquet, row groups of 3"],
    "arrow file": TABLES["arrow file"],
    "arrow in one batch": arrow("stream", 1_000_000),
    "arrow stream, compressed": TABLES["arrow stream, compressed"],
    "csv": to_file(
        "in.csv", lambda rows: COMMA([{"completion": row["text"], "prompt": "", "more": ""} for row in rows])
    ),
    "parquet, rows apart": TABLES["parquet, rows apart"],
    "save_to_disk": saved,
}


@pytest.mark.parametrize("name", APPENDED)
def test_appended_rows_are_new_blocks(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is written again with more rows: all blocks but the last keep their hashes."""
    monkeypatch.setattr(sources, "BLOCK_BYTES", 3000)
    rows = [{"text": f"{number} " + "mules " * (number % 40)} for number in range(1500)]
    form = "prompt_completion" if name == "csv" else "text"
    before, after = (
        [block.hash for file in scan(APPENDED[name](folder, some), folder, form) for block in file.blocks]
        for some in (rows[:1200], rows)
    )
    assert len(after) > len(before) > 15
    assert after[: len(before) - 1] == before[:-1]
    assert not {*before} & {*after[len(before) :]}


def test_batches_do_not_matter_in_arrow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes do not depend on how a writer groups or compresses the rows, or frames the file."""
    monkeypatch.setattr(sources, "BLOCK_BYTES", 2000)
    rows = [{"text": f"{number} " + "x" * (number % 90), "n": number} for number in range(700)]
    hashes = set()
    ways: list[tuple[str, int, Row]] = [
        ("file", 1000, {}),
        ("stream", 13, {}),
        ("file", 64, {"compression": "zstd"}),
        ("stream", 700, {}),
    ]
    for number, (kind, count, options) in enumerate(ways):
        (folder / f"{number}").mkdir()
        (file,) = scan(arrow(kind, count, **options)(folder / f"{number}", rows), folder, "text")
        hashes.add(tuple(block.hash for block in file.blocks))
    assert len(hashes) == 1


def test_only_needed_columns_are_read(folder: Path) -> None:
    """A column that the format does not look at may hold what Python cannot even name."""
    table = pa.table({"text": ["a", "b"], "when": pa.array([1, 2**62], pa.timestamp("ns", tz="Nowhere/Land"))})
    pq.write_table(table, folder / "in.parquet")
    files = scan(folder / "in.parquet", folder, "text")
    assert [one[4] for one in examples_of(files, "text")] == ["a", "b"]


@pytest.mark.parametrize("name", ["jsonl", "zst", "parquet", "arrow file", "save_to_disk", "csv"])
def test_a_look_at_the_first_rows(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "BLOCK_BYTES", 100)
    rows = [{"completion": f"{number}", "prompt": "p", "more": "m"} for number in range(300)]
    write = {**LINES, **TABLES, **CSVS}[name]
    files = scan(write(folder, rows), folder, "prompt_completion")
    assert sample_rows(files[0], 150) == rows[:150]
    assert sample_rows(files[0], 1000) == rows
    block = files[0].blocks[0]
    few = read_rows(files[0].where(block), block, 1 << 20, limit=1)
    assert len(few.lines or few.records or ()) == 1


def test_the_first_rows_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`max_rows` counts over all files in their order, and cuts the block in which it ends."""
    monkeypatch.setattr(sources, "BLOCK_BYTES", 500)
    rows = [{"completion": f"{number}", "prompt": "p" * (number % 20), "more": ""} for number in range(300)]
    for name, write in {**LINES, **TABLES, **CSVS}.items():
        place = folder / name.replace(" ", "")
        (place / "deep").mkdir(parents=True)
        first, second = write(place, rows[:120]), write(place / "deep", rows[120:])
        for count in (1, 119, 120, 121, 301):
            data = {"name": "one", "format": "prompt_completion", "path": [str(first), str(second)], "max_rows": count}
            files = scan_source(SourceConfig.model_validate(data), folder, folder / "cache")
            found = [one[3] for one in examples_of(files, "prompt_completion")]
            assert found == [f"{number}" for number in range(min(count, 300))], (name, count)
            assert sum(file.not_taken for file in files) == max(300 - count, 0)
            assert sum(file.lines for file in files) == min(count, 300)
