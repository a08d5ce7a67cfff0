"""Conversations with tools: the same documents from every container that keeps values of mixed keys."""

import csv
import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

from tests import kit
from tests.kit import Row


def call(name: str, **arguments: Any) -> Row:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def tool(name: str, **properties: Any) -> Row:
    schema = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def rows() -> list[Row]:
    """Conversations whose calls and tools have other keys in each row, nulls that somebody wrote, and one key that has
    values of several types."""
    return [
        {
            "messages": [
                {"role": "user", "content": f"how many mules left camp {number}?"},
                {"role": "assistant", "content": None, "tool_calls": [call("count", camp=number, note=None, many=[1])]},
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
                    "tool_calls": [call("lead", mule=f"m{number}", far=1.5), call("rest", far="x")],
                },
            ],
            "tools": [tool("lead", mule="string"), tool("rest")],
        }
        for number in range(40)
    ]


def cells(data: list[Row]) -> list[Row]:
    return [{name: json.dumps(value) for name, value in row.items()} for row in data]


def write_csv(path: Path, data: list[Row]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["tools", "messages"])
        writer.writeheader()
        writer.writerows(cells(data))


def write_json_in_structs(path: Path, data: list[Row]) -> None:
    """JSON below lists and structs, whose other keys are null where another row has them."""

    def conversation(arguments: pa.DataType) -> pa.DataType:
        function = pa.struct({"name": pa.string(), "arguments": arguments})
        calls = pa.list_(pa.struct({"type": pa.string(), "function": function}))
        keys = {"role": pa.string(), "content": pa.string(), "tool_calls": calls, "name": pa.string()}
        return pa.list_(pa.struct(keys))

    def texts(said: Row) -> Row:
        calls = [
            {**one, "function": {**one["function"], "arguments": json.dumps(one["function"]["arguments"])}}
            for one in said.get("tool_calls", ())
        ]
        return {**said, "tool_calls": calls} if calls else said

    chats = [[texts(said) for said in row["messages"]] for row in data]
    messages = pa.array(chats, conversation(pa.string())).cast(conversation(pa.json_()))
    table = pa.table({"messages": messages, "tools": pa.array([row["tools"] for row in cells(data)])})
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=7)


def test_the_same_documents_from_every_container(tmp_path: Path) -> None:
    data = rows()
    made = datasets.Dataset.from_list(data, on_mixed_types="use_json")
    assert "arrow.json" in str(made.data.schema)
    kit.write(tmp_path / "plain.jsonl", data)
    kit.write(tmp_path / "cells.jsonl", cells(data))
    kit.write(tmp_path / "named" / "train.jsonl", data)
    write_csv(tmp_path / "in.csv", data)
    made.save_to_disk(tmp_path / "saved")
    made.to_parquet(tmp_path / "library.parquet")
    columns = {name: pa.array([row[name] for row in cells(data)], pa.json_()) for name in ("messages", "tools")}
    pq.write_table(pa.table(columns), tmp_path / "columns.parquet")
    write_json_in_structs(tmp_path / "structs.arrow", data)
    paths = ("plain.jsonl", "cells.jsonl", "in.csv", "saved", "library.parquet", "columns.parquet", "structs.arrow")
    sources = [{"name": f"s{number}", "path": path} for number, path in enumerate((*paths, "hf://./named"))]
    keys: dict[str, Any] = {"tokenizer": {"chat_template": kit.TOOLS}, "truncate": {"max_length": 1024}}
    packed = kit.packed(kit.configure(tmp_path, *sources, mask="all", **keys))
    place = {one["doc_id"]: (one["source"], one["line"]) for one in packed.documents()}
    found: dict[str, dict[int, list[int]]] = {source["name"]: {} for source in sources}
    for row in packed.rows():
        at = 0
        for size, document in zip(row["seq_lengths"], row["doc_ids"], strict=True):
            source, line = place[document]
            found[source][line] = row["input_ids"][at : at + size]
            at += size
    assert len(found["s0"]) == len(data)
    for source in sources:
        assert found[source["name"]] == found["s0"], source


def test_text_that_is_no_json_costs_its_row(tmp_path: Path) -> None:
    """Arrow does not check what its JSON type holds."""
    good = json.dumps([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    texts = pa.array([good, "{", good, "[" * 500 + "]" * 500, None], pa.string())
    pq.write_table(pa.table({"messages": texts.cast(pa.json_())}), tmp_path / "in.parquet")
    packed = kit.packed(kit.configure(tmp_path, {"name": "one", "format": "messages", "path": "in.parquet"}))
    assert [one["line"] for one in packed.documents()] == [1, 3]
    assert [(one["line"], one["reason"]) for one in packed.rejects()] == [
        (2, "invalid_json"),
        (4, "too_deep"),
        (5, "wrong_type"),
    ]
