"""`format: auto` and a person's own reader, through whole runs."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.observer import Silent
from packtrain.pipeline.run.run import run
from packtrain.schemas.config.config import RunConfig
from packtrain.schemas.config.source import FORMAT_KEYS
from packtrain.schemas.errors import OutputError
from packtrain.schemas.manifest import Manifest

Row = dict[str, Any]


class Noted(Silent):
    """Keeps what was said."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def chat(*texts: str) -> list[Row]:
    return [
        {"role": role, "content": text} for role, text in zip(("user", "assistant") * len(texts), texts, strict=False)
    ]


def write(path: Path, rows: list[Row]) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")  # else its time would change, and inputs be looked at again
    return path


class Bench:
    """A folder with one source, and runs over it."""

    def __init__(self, folder: Path, tokenizer: Path, cache: Path) -> None:
        self.folder = folder
        self.tokenizer = tokenizer
        self.cache = cache

    def config(self, rows: list[Row], out: str = "out", workers: int = 1, **source: Any) -> RunConfig:
        write(self.folder / "rows.jsonl", rows)
        return RunConfig.model_validate(
            {
                "out": out,
                "cache": str(self.cache),
                "tokenizer": {"path": str(self.tokenizer), "engine": "tokenizers"},
                "sources": [{"name": "a", "path": "rows.jsonl", **source}],
                "truncate": {"max_length": 512},
                "run": {"workers": workers},
            }
        )

    def __call__(self, rows: list[Row], out: str = "out", **more: Any) -> tuple[Manifest, list[str]]:
        noted = Noted()
        manifest = run(self.config(rows, out, **more), base=self.folder, observer=noted)
        return manifest, noted.notes

    def parts(self) -> int:
        return len(list((self.cache / "encoded").rglob("*.json")))


@pytest.fixture
def bench(tmp_path: Path, tiny_tokenizer: Path, new_cache: Callable[[], Path]) -> Bench:
    return Bench(tmp_path, tiny_tokenizer, new_cache())


CHATS: list[Row] = [{"messages": chat("Hi", f"Hello {i}", "More", f"Yes {i}")} for i in range(5)]


def test_what_is_found_is_said_and_planned_and_encodes_as_if_it_had_been_written(bench: Bench) -> None:
    found, notes = bench(CHATS)
    assert ["source a: format messages" in note for note in notes] == [True]
    assert found.plan["formats"]["a"]["format"] == "messages"
    assert found.plan["config"]["sources"][0]["format"] == "auto"
    parts = bench.parts()
    written, notes = bench(CHATS, "out2", format="messages")
    assert bench.parts() == parts
    assert written.splits == found.splits
    again, notes = bench(CHATS)
    assert again.hash == found.hash
    assert "already finished" in notes[0]


def test_alpaca_and_sharegpt_and_messages_of_the_same_turns_are_the_same(bench: Bench, read_rows: Any) -> None:
    system = {"role": "system", "content": "S"}
    rows: dict[str, Row] = {
        "messages": {"messages": [system, *chat("Hi\nyou", "Hello")]},
        "alpaca": {"instruction": "Hi", "input": "you", "output": "Hello", "system": "S"},
        "sharegpt": {
            "system": "S",
            "conversations": [{"from": "human", "value": "Hi\nyou"}, {"from": "gpt", "value": "Hello"}],
        },
        "prompt_completion": {"prompt": [system, *chat("Hi\nyou")], "completion": chat("", "Hello")[1:]},
    }
    packed = []
    for name, row in rows.items():
        manifest, _ = bench([row], name)
        assert manifest.plan["formats"]["a"]["format"] == name
        packed.append(read_rows(bench.folder / name))
    assert packed[0][0]["labels"].count(-100) < len(packed[0][0]["labels"])
    assert all(one == packed[0] for one in packed)


READER = """
import helper

def read(row):
    if row["kind"] == "chat":
        return [{"messages": helper.chat(text), "group": row["id"]} for text in row["texts"]]
    if row["kind"] == "text":
        return {"text": row["texts"][0]}
    if row["kind"] == "none":
        return None
    return row["nothing"]
"""
HELPER = """
def chat(text):
    return [{"role": "user", "content": "Say"}, {"role": "assistant", "content": text}]
"""
ODD: list[Row] = [
    {"id": "1", "kind": "chat", "texts": ["a", "b"]},
    {"id": "2", "kind": "text", "texts": ["a long story"]},
    {"id": "3", "kind": "none"},
    {"id": "4", "kind": "odd"},
]


def test_a_reader_beside_the_configuration(bench: Bench) -> None:
    (bench.folder / "odd_reader.py").write_text(READER, encoding="utf-8")
    (bench.folder / "helper.py").write_text(HELPER, encoding="utf-8")
    manifest, _ = bench(ODD, format="python:odd_reader:read", workers=2)
    total = manifest.ledger.total()
    assert (total.rows_read, total.rows_used, total.examples_made) == (4, 2, 3)
    assert (total.rows_filtered, total.rows_rejected) == ({"not_wanted": 1}, {"reader_error": 1})
    (reject,) = map(json.loads, (bench.folder / "out" / "rejects.jsonl").read_text().splitlines())
    assert (reject["file"], reject["line"]) == ("rows.jsonl", 4)
    assert reject["detail"] == "odd_reader.py, line 11, in read: KeyError: 'nothing'"


def test_a_changed_reader_encodes_again_and_is_another_run(bench: Bench) -> None:
    rows = [{"body": "one"}, {"body": "two"}]
    reader = bench.folder / "plain_reader.py"

    def written(expression: str) -> str:
        reader.write_text(f"def read(row):\n    return {{'text': {expression}}}\n", encoding="utf-8")
        return "python:plain_reader:read"

    first, _ = bench(rows, format=written("row['body'] + '!'"))
    parts = bench.parts()
    same, notes = bench(rows, format="python:plain_reader:read")
    assert (same.hash, bench.parts()) == (first.hash, parts)
    assert "already finished" in notes[0]
    with pytest.raises(OutputError):
        bench(rows, format=written("row['body'] + '?'"))
    other, _ = bench(rows, "other", format="python:plain_reader:read")
    assert bench.parts() > parts
    assert other.splits["train"].shards[0].hash != first.splits["train"].shards[0].hash


def test_the_reader_of_the_page_about_data_runs(bench: Bench) -> None:
    page = (Path(__file__).parents[3] / "docs" / "data.md").read_text(encoding="utf-8")
    (code,) = (code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def chat" in code)
    (bench.folder / "page_readers.py").write_text(code, encoding="utf-8")
    turns = [{"who": "user", "said": "Hi"}, {"who": "assistant", "said": "Hello"}]
    rows: list[Row] = [{"reviewed": True, "turns": turns, "thread": "t"}, {"reviewed": False}]
    manifest, _ = bench(rows, format="python:page_readers:chat")
    total = manifest.ledger.total()
    assert (total.rows_used, total.rows_filtered, total.rows_rejected) == (1, {"not_wanted": 1}, {})


def test_the_page_about_data_names_every_format_and_key() -> None:
    page = (Path(__file__).parents[3] / "docs" / "data.md").read_text(encoding="utf-8")
    for format, keys in FORMAT_KEYS.items():
        assert f"`{format}`" in page
        assert [key for key in keys if f"`{key}`" not in page] == []
