"""The same awkward rows in every container a file can have: the same dataset, and the same places in it."""

import csv
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests import kit

Row = dict[str, Any]
Write = Callable[[Path, list[Row]], None]

ODD = ("\t", "\u2028", '"', "\\", ",", "\n\n", "\u0085", "'", "a\u0301", "🏳️‍🌈", "\x1f", "[", "]", "{", "}", "null")


def zstd(data: bytes) -> bytes:
    """Compressed as the command-line tool does it: by a stream, without its size in the header."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


def two_members(data: bytes) -> bytes:
    """What `cat a.gz b.gz` gives."""
    return gzip.compress(data[: len(data) // 2]) + gzip.compress(data[len(data) // 2 :])


def data(encode: Callable[[list[Row]], bytes]) -> Write:
    def write(file: Path, rows: list[Row]) -> None:
        file.write_bytes(encode(rows))

    return write


def array(rows: list[Row], indent: int | None = None) -> bytes:
    """JSON without escapes of letters."""
    return json.dumps(rows, ensure_ascii=False, indent=indent).encode()


def windows(data: bytes) -> bytes:
    return data.replace(b"\n", b"\r\n")


def parquet(**options: Any) -> Write:
    return lambda file, rows: pq.write_table(pa.Table.from_pylist(rows), file, **options)


def arrow(kind: Literal["file", "stream"], batch: int, dictionary: bool = False, **options: Any) -> Write:
    def write(file: Path, rows: list[Row]) -> None:
        table = pa.Table.from_pylist(rows)
        for index, field in enumerate(table.schema if dictionary else ()):
            if field.type == pa.string():
                table = table.set_column(index, field.name, table.column(index).dictionary_encode())
        make = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
        with make(str(file), table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
            writer.write_table(table, max_chunksize=batch)

    return write


def separated(separator: str, line_end: str, quoting: Literal[0, 1]) -> Callable[[list[Row]], bytes]:
    def encode(rows: list[Row]) -> bytes:
        sink = io.StringIO()
        writer = csv.DictWriter(sink, list(rows[0]), delimiter=separator, lineterminator=line_end, quoting=quoting)
        writer.writeheader()
        writer.writerows(rows)
        return sink.getvalue().encode()

    return encode


def columns_of_json(rows: list[Row]) -> pa.Table:
    """Values of every type in columns of Arrow's JSON type."""
    return pa.table({name: pa.array([json.dumps(row[name]) for row in rows], pa.json_()) for name in rows[0]})


def library(rows: list[Row]) -> Any:
    """A dataset of the library, which makes JSON of what has other keys in each row."""
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_list(rows, on_mixed_types="use_json")


COMMA = separated(",", "\n", csv.QUOTE_MINIMAL)
ANY: dict[str, tuple[str, Write]] = {
    "plain letters": (
        ".jsonl",
        data(lambda rows: "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()),
    ),
    "mark": (".jsonl", data(lambda rows: b"\xef\xbb\xbf" + kit.lines(rows))),
    "windows": (".jsonl", data(lambda rows: windows(kit.lines(rows)))),
    "gz": (".jsonl.gz", data(lambda rows: two_members(kit.lines(rows)))),
    "zst": (".jsonl.zst", data(lambda rows: zstd(kit.lines(rows)))),
    "zst under another name": (".json", data(lambda rows: zstd(kit.lines(rows)))),
    "array, indented": (".json", data(lambda rows: array(rows, 2))),
    "array, as on Windows": (
        ".json.gz",
        data(lambda rows: gzip.compress(windows(array(rows, 4) + b"\n"))),
    ),
    "array with a mark": (".json.zst", data(lambda rows: zstd(b"\xef\xbb\xbf" + array(rows)))),
    "parquet": (".parquet", parquet()),
    "parquet, small groups": (".parquet", parquet(row_group_size=3, compression="zstd")),
    "arrow": (".arrow", arrow("file", 5)),
    "arrow, compressed": (".arrow", arrow("stream", 7, compression="lz4")),
    "arrow, dictionaries": (".arrow", arrow("file", 7, dictionary=True)),
    "parquet, columns of JSON": (".parquet", lambda file, rows: pq.write_table(columns_of_json(rows), file)),
    "parquet by the library": (".parquet", lambda file, rows: library(rows).to_parquet(file)),
}
TEXTS: dict[str, tuple[str, Write]] = {
    "csv": (".csv", data(COMMA)),
    "csv as on Windows": (".csv", data(lambda rows: b"\xef\xbb\xbf" + separated(",", "\r\n", csv.QUOTE_ALL)(rows))),
    "tsv": (".tsv", data(separated("\t", "\n", csv.QUOTE_MINIMAL))),
    "csv.zst": (".csv.zst", data(lambda rows: zstd(COMMA(rows)))),
}


def conversations() -> list[Row]:
    """Calls, results, contents that are null, flags, tools as texts, and a column that nobody asked for."""
    rows: list[Row] = []
    for number, row in enumerate(kit.corpus("chats", 40)):
        messages = [{"name": None, "train": None, "tool_calls": None} | one for one in row["messages"]]
        messages[0]["content"] += ODD[number % len(ODD)] + "?"
        if number % 4 == 0:
            call = {"type": "function", "function": {"name": "look", "arguments": json.dumps({"at": ODD[number % 16]})}}
            turn = {"role": "assistant", "content": None, "train": None, "name": None, "tool_calls": [call]}
            messages[1:1] = [turn, turn | {"role": "tool", "content": "there", "tool_calls": None}]
        tools = '[{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {}}}]'
        rows.append({"messages": messages, "tools": tools if number % 4 == 0 else None, "extra": number})
    return rows


def answers() -> list[Row]:
    return [
        {
            "completion": row["completion"] + ODD[place % len(ODD)] + ".",
            "prompt": row["prompt"] + ODD[-place % 16],
            "more": "b,",
        }
        for place, row in enumerate(kit.corpus("pairs", 60))
    ]


def packed(folder: Path, suffix: str, write: Write, rows: list[Row]) -> kit.Packed:
    """The dataset of a file that is called `in`."""
    write(folder / f"in{suffix}", rows)
    form = "messages" if "messages" in rows[0] else "prompt_completion"
    source = {"name": "rows", "format": form, "path": f"in{suffix}"}
    tokenizer = {"chat_template": kit.TOOLS} if form == "messages" else {}
    return kit.packed(kit.configure(folder, source, tokenizer=tokenizer, mask="assistant", keep_untrained=True))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, kit.Packed]:
    """The datasets of the rows as JSONL."""
    jsonl = data(kit.lines)
    return {
        rows.__name__: packed(tmp_path_factory.mktemp("plain"), ".jsonl", jsonl, rows())
        for rows in (conversations, answers)
    }


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (place % 3 > 0)) for place, name in enumerate(ANY | TEXTS)]
)
def test_the_container_does_not_matter(name: str, plain: dict[str, kit.Packed], tmp_path: Path) -> None:
    for rows in (answers, conversations) if name in ANY else (answers,):
        expected = plain[rows.__name__]
        (tmp_path / rows.__name__).mkdir()
        made = packed(tmp_path / rows.__name__, *(ANY | TEXTS)[name], rows())
        assert made.digest() == expected.digest()
        assert made.documents() == expected.documents()
        assert len(made.documents()) == len(rows())


def test_text_that_is_no_json_costs_its_row(tmp_path: Path) -> None:
    """Arrow does not check what its JSON type holds."""
    good = json.dumps([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    texts = pa.array([good, "{", good, "[" * 500 + "]" * 500, None], pa.string())
    pq.write_table(pa.table({"messages": texts.cast(pa.json_())}), tmp_path / "in.parquet")
    made = kit.packed(kit.configure(tmp_path, {"name": "one", "format": "messages", "path": "in.parquet"}))
    assert [one["line"] for one in made.documents()] == [1, 3]
    rejects = [(one["line"], one["reason"]) for one in made.rejects()]
    assert rejects == [(2, "invalid_json"), (4, "too_deep"), (5, "wrong_type")]
