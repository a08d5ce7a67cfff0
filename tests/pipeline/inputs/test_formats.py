"""`format: auto` and a person's own reader, through whole runs."""

import re
from pathlib import Path
from typing import Any

import pytest
from packtrain.schemas.errors import OutputError
from packtrain.schemas.tables.row_formats import ROW_FORMATS

from tests import kit
from tests.kit import Packed, Row


def chat(*texts: str) -> list[Row]:
    return [
        {"role": role, "content": text} for role, text in zip(("user", "assistant") * len(texts), texts, strict=False)
    ]


class Bench:
    """A folder with one source, and runs over it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, rows: list[Row], out: str = "out", *, workers: int = 1, **source: Any) -> Packed:
        file = self.folder / "rows.jsonl"
        if not file.exists() or file.read_bytes() != kit.lines(rows):
            kit.write(file, rows)  # else its time would change, and inputs be looked at again
        chosen = {"name": "a", "path": file.name, **source}
        keys = {"tokenizer": {"engine": "tokenizers"}, "run": {"workers": workers}}
        return kit.packed(kit.configure(self.folder, chosen, out=str(self.folder / out), **keys))

    def parts(self) -> int:
        return len(list((self.folder / "cache" / "encoded").rglob("*.json")))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


CHATS: list[Row] = [{"messages": chat("Hi", f"Hello {i}", "More", f"Yes {i}")} for i in range(5)]


JOINED = "texts are joined as they are (style=chat makes turns of them)"
TEXTS: list[Row] = [{"prompt": f"Question {i}? ", "completion": f"Answer {i}."} for i in range(5)]
TURNS: list[Row] = [{"prompt": chat(f"Question {i}?"), "completion": chat("", f"Answer {i}.")[1:]} for i in range(5)]


@pytest.mark.parametrize(
    ("rows", "keys", "joined"),
    [
        (TEXTS, {"format": "auto"}, True),
        (TEXTS, {"format": "prompt_completion"}, True),
        ([{"q": "1? ", "completion": "2"}], {"format": "prompt_completion", "keys": {"prompt": "q"}}, True),
        (TEXTS, {"format": "prompt_completion", "style": "plain"}, False),
        (TEXTS, {"format": "prompt_completion", "style": "chat"}, False),
        (TURNS, {"format": "prompt_completion"}, False),
        ([{"text": "a text"}], {"format": "text"}, False),
    ],
)
def test_a_run_says_that_texts_are_joined_without_a_template(
    bench: Bench, rows: list[Row], keys: dict[str, Any], joined: bool
) -> None:
    """Unless the configuration shows that it is known."""
    notes = bench(rows, **keys).notes
    assert sum(note.startswith("source a: ") and note.endswith(JOINED) for note in notes) == joined


def test_what_is_found_is_said_and_planned_and_encodes_as_if_it_had_been_written(bench: Bench) -> None:
    found = bench(CHATS)
    assert ["source a: format messages" in note for note in found.notes].count(True) == 1
    assert found.record["plan"]["formats"]["a"]["format"] == "messages"
    assert found.record["plan"]["config"]["sources"][0]["format"] == "auto"
    parts = bench.parts()
    written = bench(CHATS, "out2", format="messages")
    assert bench.parts() == parts
    assert written.record["splits"] == found.record["splits"]
    again = bench(CHATS)
    assert again.manifest.hash == found.manifest.hash
    assert "already finished" in again.notes[-1]


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
    made = bench(ODD, format="python:odd_reader:read", workers=2)
    total = made.manifest.ledger.total()
    assert (total.rows_read, total.rows_used, total.examples_made) == (4, 2, 3)
    assert (total.rows_filtered, total.rows_rejected) == ({"not_wanted": 1}, {"reader_error": 1})
    (reject,) = made.rejects()
    assert (reject["file"], reject["line"]) == ("rows.jsonl", 4)
    assert reject["detail"] == "odd_reader.py, line 11, in read: KeyError: 'nothing'"


def test_a_changed_reader_encodes_again_and_is_another_run(bench: Bench) -> None:
    rows = [{"body": "one"}, {"body": "two"}]
    reader = bench.folder / "plain_reader.py"

    def written(expression: str) -> str:
        reader.write_text(f"def read(row):\n    return {{'text': {expression}}}\n", encoding="utf-8")
        return "python:plain_reader:read"

    first = bench(rows, format=written("row['body'] + '!'"))
    parts = bench.parts()
    same = bench(rows, format="python:plain_reader:read")
    assert (same.manifest.hash, bench.parts()) == (first.manifest.hash, parts)
    assert "already finished" in same.notes[-1]
    with pytest.raises(OutputError):
        bench(rows, format=written("row['body'] + '?'"))
    other = bench(rows, "other", format="python:plain_reader:read")
    assert bench.parts() > parts
    assert other.digest() != first.digest()


def test_the_reader_of_the_page_about_data_runs(bench: Bench) -> None:
    page = (Path(__file__).parents[3] / "docs" / "data.md").read_text(encoding="utf-8")
    (code,) = (code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def chat" in code)
    (bench.folder / "page_readers.py").write_text(code, encoding="utf-8")
    turns = [{"who": "user", "said": "Hi"}, {"who": "assistant", "said": "Hello"}]
    rows: list[Row] = [{"reviewed": True, "turns": turns, "thread": "t"}, {"reviewed": False}]
    total = bench(rows, format="python:page_readers:chat").manifest.ledger.total()
    assert (total.rows_used, total.rows_filtered, total.rows_rejected) == (1, {"not_wanted": 1}, {})


def test_the_page_about_data_names_every_format_and_key() -> None:
    page = (Path(__file__).parents[3] / "docs" / "data.md").read_text(encoding="utf-8")
    for format, keys in ((name, row_format.keys) for name, row_format in ROW_FORMATS.items()):
        assert f"`{format}`" in page
        assert [key for key in keys if f"`{key}`" not in page] == []


def test_a_first_row_that_only_its_source_allows_shows_the_format(bench: Bench) -> None:
    """A row larger than `max_row_bytes` by default, and smaller than that of its source."""
    row: Row = {"messages": chat("Hi!", "Hello."), "note": " " * (17 << 20)}
    packed = bench([row], max_row_bytes="32MiB")
    assert packed.ledger["a"]["rows_used"] == 1
    assert any("format messages" in note for note in packed.notes)
