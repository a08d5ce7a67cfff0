"""Conversations with tools: the same documents, token by token, from every container and every writer of it."""

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packtrain.pipeline.inputs.formats import resolve_format
from packtrain.pipeline.inputs.read import prepare_block
from packtrain.pipeline.inputs.scan import scan_source
from packtrain.pipeline.run.driver import run
from packtrain.schemas.config.config import SourceConfig
from packtrain.stages.prep import make_format

Row = dict[str, Any]

TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>tools\n' + tools | tojson + '<|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + (message.content or '') }}"
    "{% for call in message.tool_calls or [] %}{{ call | tojson }}{% endfor %}"
    "{{ '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def call(name: str, **arguments: Any) -> Row:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def tool(name: str, **properties: Any) -> Row:
    schema = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def rows(*, nulls: bool) -> list[Row]:
    """Conversations whose calls and tools have other keys in each row.

    Args:
        nulls: also with nulls that somebody wrote, and with one key that has values of several types.
    """
    odd = {"note": None, "many": [1, None]} if nulls else {}
    rest = {"far": "x"} if nulls else {}
    return [
        {
            "messages": [
                {"role": "user", "content": f"how many mules left camp {number}?"},
                {"role": "assistant", "content": None, "tool_calls": [call("count", camp=number, **odd)]},
                {"role": "tool", "content": str(number * 7)},
                {"role": "assistant", "content": f"{number * 7} — über {number}"},
            ],
            "tools": [tool("count", camp="integer"), tool("lead", mule="string", far="number")],
        }
        if number % 2
        else {
            "messages": [
                {"role": "user", "content": f"lead mule {number}"},
                {
                    "role": "assistant",
                    "content": "Yes.",
                    "tool_calls": [call("lead", mule=f"m{number}", far=1.5), call("rest", **rest)],
                },
            ],
            "tools": [tool("lead", mule="string"), tool("rest")],
        }
        for number in range(40)
    ]


def lines(data: list[Row]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in data)


def write_bytes(name: str, encode: Callable[[list[Row]], bytes]) -> Callable[[Path, list[Row]], str]:
    def write(folder: Path, data: list[Row]) -> str:
        (folder / name).write_bytes(encode(data))
        return str(folder / name)

    return write


def zstd(data: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(data, asbytes=True))


def cells(data: list[Row]) -> list[Row]:
    return [{name: json.dumps(value) for name, value in row.items()} for row in data]


def write_csv(folder: Path, data: list[Row]) -> str:
    with (folder / "in.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["tools", "messages"])
        writer.writeheader()
        writer.writerows(cells(data))
    return str(folder / "in.csv")


def library(save: Callable[[Any, Path], str]) -> Callable[[Path, list[Row]], str]:
    """What the installed `datasets` writes: with columns of mixed keys as its `Json`, which is Arrow's JSON type."""

    def write(folder: Path, data: list[Row]) -> str:
        import datasets

        made = datasets.Dataset.from_list(data, on_mixed_types="use_json")
        assert "arrow.json" in str(made.data.schema)
        return save(made, folder)

    return write


def save_to_disk(made: Any, folder: Path) -> str:
    made.save_to_disk(folder / "in")
    return str(folder / "in")


def to_parquet(made: Any, folder: Path) -> str:
    made.to_parquet(folder / "in.parquet")
    return str(folder / "in.parquet")


def by_name(folder: Path, data: list[Row]) -> str:
    (folder / "named").mkdir()
    (folder / "named" / "train.jsonl").write_bytes(lines(data))
    return f"hf://{folder / 'named'}"


def table_of_json(folder: Path, data: list[Row]) -> str:
    """Whole columns of JSON."""
    columns = {name: pa.array([row[name] for row in cells(data)], pa.json_()) for name in ("messages", "tools")}
    pq.write_table(pa.table(columns), folder / "in.parquet")
    return str(folder / "in.parquet")


def json_in_structs(folder: Path, data: list[Row]) -> str:
    """JSON below lists and structs, whose other keys are null where another row has them."""

    def conversation(arguments: pa.DataType) -> pa.DataType:
        function = pa.struct({"name": pa.string(), "arguments": arguments})
        calls = pa.list_(pa.struct({"type": pa.string(), "function": function}))
        keys = {"role": pa.string(), "content": pa.string(), "tool_calls": calls, "name": pa.string()}
        return pa.list_(pa.struct(keys))

    def texts(row: Row) -> list[Row]:
        return [
            {
                **said,
                "tool_calls": [
                    {**one, "function": {**one["function"], "arguments": json.dumps(one["function"]["arguments"])}}
                    for one in said["tool_calls"]
                ],
            }
            if "tool_calls" in said
            else said
            for said in row["messages"]
        ]

    messages = pa.array([texts(row) for row in data], conversation(pa.string())).cast(conversation(pa.json_()))
    table = pa.table({"messages": messages, "tools": pa.array([row["tools"] for row in cells(data)])})
    with pa.ipc.new_file(str(folder / "in.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    return str(folder / "in.arrow")


EXACT: dict[str, Callable[[Path, list[Row]], str]] = {
    "jsonl": write_bytes("in.jsonl", lines),
    "gz": write_bytes("in.jsonl.gz", lambda data: gzip.compress(lines(data))),
    "zst": write_bytes("in.jsonl.zst", lambda data: zstd(lines(data))),
    "jsonl, text in cells": write_bytes("in.jsonl", lambda data: lines(cells(data))),
    "csv": write_csv,
    "save_to_disk": library(save_to_disk),
    "to_parquet": library(to_parquet),
    "hf": by_name,
    "parquet, columns of JSON": table_of_json,
    "arrow, JSON in structs": json_in_structs,
}
"""These keep a null that somebody wrote."""
LOCAL = {name: write for name, write in EXACT.items() if name != "hf"}
"""Those that no process of the hub's library is started for."""


def unified_parquet(folder: Path, data: list[Row]) -> str:
    pq.write_table(pa.Table.from_pylist(data), folder / "in.parquet", row_group_size=9)
    return str(folder / "in.parquet")


def unified_arrow(folder: Path, data: list[Row]) -> str:
    table = pa.Table.from_pylist(data)
    with pa.ipc.new_stream(str(folder / "in.arrow"), table.schema) as writer:
        writer.write_table(table)
    return str(folder / "in.arrow")


def unified_saved(folder: Path, data: list[Row]) -> str:
    import datasets

    made = datasets.Dataset(datasets.table.InMemoryTable(pa.Table.from_pylist(data)))
    assert "arrow.json" not in str(made.data.schema)
    return save_to_disk(made, folder)


UNIFIED = {"parquet": unified_parquet, "arrow": unified_arrow, "save_to_disk as of old": unified_saved}
"""One struct for all rows: each has every key of the others, as null."""


@pytest.mark.parametrize("nulls", [True, False])
def test_the_same_documents_from_every_container(
    nulls: bool,
    tmp_path: Path,
    make_tokenizer: Callable[..., Path],
    new_cache: Callable[[], Path],
    packed: Callable[..., Any],
) -> None:
    data = rows(nulls=nulls)
    tokenizer = make_tokenizer("tools", template=TEMPLATE)
    ways = EXACT if nulls else LOCAL | UNIFIED
    sources = []
    for number, write in enumerate(ways.values()):
        (tmp_path / f"{number}").mkdir()
        path = write(tmp_path / f"{number}", data)
        sources.append({"name": f"s{number}", "format": "messages", "path": path})
    config = {
        "out": str(tmp_path / "out"),
        "cache": str(new_cache()),
        "tokenizer": {"path": str(tokenizer), "engine": "tokenizers"},
        "sources": sources,
        "mask": "all",
        "truncate": {"max_length": 1024},
        "run": {"workers": 1, "report": False},
    }
    (tmp_path / "run.yaml").write_text(json.dumps(config))
    run(tmp_path / "run.yaml")
    documents: dict[str, set[Any]] = {}
    for piece in packed(config):
        source, _, rest = piece[0].partition("/")
        documents.setdefault(source, set()).add((rest.rpartition(":")[2], *piece[1:]))
    assert len(documents) == len(ways)
    assert len(documents["s0"]) == len(data)
    for number, name in enumerate(ways):
        assert documents[f"s{number}"] == documents["s0"], name


@pytest.mark.parametrize("name", LOCAL)
def test_the_format_is_found_in_every_container(name: str, tmp_path: Path) -> None:
    source = SourceConfig.model_validate({"name": "one", "path": EXACT[name](tmp_path, rows(nulls=True))})
    files = scan_source(source, tmp_path, tmp_path / "cache")
    assert resolve_format(source, tmp_path, files).name == "messages"


def test_text_that_is_no_json_costs_its_row(tmp_path: Path) -> None:
    """Arrow does not check what its JSON type holds."""
    good = json.dumps([{"role": "user", "content": "a"}])
    texts = pa.array([good, "{", good, "[" * 500 + "]" * 500, None], pa.string())
    pq.write_table(pa.table({"messages": texts.cast(pa.json_())}), tmp_path / "in.parquet")
    source = SourceConfig.model_validate({"name": "one", "format": "messages", "path": str(tmp_path / "in.parquet")})
    (file,) = scan_source(source, tmp_path, tmp_path / "cache")
    prepared = prepare_block(file.path, file.blocks[0], make_format("messages"), 1 << 20)
    assert [one.line for one in prepared.examples] == [0, 2]
    assert [(line, reason) for line, reason, _ in prepared.rejects] == [
        (1, "invalid_json"),
        (3, "too_deep"),
        (4, "wrong_type"),
    ]
