"""`format: auto` and a person's own reader, through whole runs."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.inputs.first_rows import joined_words
from packtrain.pipeline.inputs.formats import resolve_formats
from packtrain.pipeline.inputs.scan import scan_source
from packtrain.pipeline.observer import Silent
from packtrain.pipeline.run.driver import look_ahead, run
from packtrain.pipeline.run.workspace import open_workspace
from packtrain.schemas.config.config import HoldoutConfig, RunConfig
from packtrain.schemas.config.formats import FORMAT_KEYS
from packtrain.schemas.errors import ConfigError, OutputError
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
def bench(tmp_path: Path, tiny_tokenizer: Path, new_cache: Callable[[Path], Path]) -> Bench:
    return Bench(tmp_path, tiny_tokenizer, new_cache(tiny_tokenizer))


CHATS: list[Row] = [{"messages": chat("Hi", f"Hello {i}", "More", f"Yes {i}")} for i in range(5)]


def test_what_is_found_is_said_and_planned_and_encodes_as_if_it_had_been_written(bench: Bench) -> None:
    found, notes = bench(CHATS)
    assert notes == [
        "source a: format messages, because all of the first 5 rows have `messages`, a list of objects with `role`, in "
        "rows.jsonl"
    ]
    assert found.plan["formats"]["a"]["format"] == "messages"
    assert found.plan["config"]["sources"][0]["format"] == "auto"
    parts = bench.parts()
    written, notes = bench(CHATS, "out2", format="messages")
    assert notes == ["all blocks of the input are in the cache, already encoded"]
    assert bench.parts() == parts
    assert written.splits == found.splits
    again, notes = bench(CHATS)
    assert again.hash == found.hash
    assert "already finished" in notes[0]


def test_columns_of_other_names_are_found(bench: Bench) -> None:
    rows = [{"conversation": chat("Hi", "Hello")}]
    found, notes = bench(rows)
    assert "`conversation`, a list of objects with `role`" in notes[0]
    assert found.plan["formats"]["a"]["options"]["messages_key"] == "conversation"
    assert found.ledger.total().examples_made == 1


def test_texts_in_two_columns_are_said_to_be_joined(bench: Bench, read_rows: Any) -> None:
    rows = [{"question": "Two and two?", "answer": "Four."}]
    keys = {"prompt": "question", "completion": "answer"}
    _, notes = bench(rows, keys=keys)
    assert notes[0].endswith("in rows.jsonl; texts are joined as they are (style: chat makes turns of them)")
    _, notes = bench(rows, "chat", keys=keys, style="chat")
    assert notes[0].endswith("in rows.jsonl")
    plain, turns = (read_rows(bench.folder / out)[0]["input_ids"] for out in ("out", "chat"))
    bench([{"messages": chat("Two and two?", "Four.")}], "same")
    assert turns == read_rows(bench.folder / "same")[0]["input_ids"] != plain


GLUED = {"prompt": "Who is there?", "completion": "Let me in."}
PARTED = {"prompt": "Who is there?", "completion": " Me."}
JOINED = (
    "source a: {} into the completion without a space or a line break between them, such as 'Who is there?Let me in.': "
    "end prompts or begin completions with one{}"
)


def test_prompts_that_run_into_their_completions_are_named_again_at_the_end(
    packtrain: Any, tmp_path: Path, tiny_tokenizer: Path, new_cache: Callable[[Path], Path]
) -> None:
    (tmp_path / "pairs.jsonl").write_text(json.dumps(GLUED) + "\n")
    done = packtrain(
        "run", "--input", tmp_path / "pairs.jsonl", "--tokenizer", tiny_tokenizer, "--out", tmp_path / "out",
        "--workers", 1, "--set", f"cache={new_cache(tiny_tokenizer)}", "--no-report",
    )  # fmt: skip
    lines = [
        number for number, line in enumerate(done.out.splitlines()) if "the prompt runs into the completion" in line
    ]
    ledger = next(number for number, line in enumerate(done.out.splitlines()) if line.startswith("rows read"))
    assert len(lines) == 2
    assert lines[0] < ledger < lines[1]


@pytest.mark.parametrize("format", ["auto", "prompt_completion", "python:pairs:read"])
def test_prompts_that_run_into_their_completions_are_named(bench: Bench, format: str) -> None:
    (bench.folder / "pairs.py").write_text("def read(row):\n    return row\n")
    turns = "" if format.startswith("python") else "; style: chat makes two turns of them"
    _, notes = bench([GLUED, PARTED, GLUED], format=format)
    assert JOINED.format("2 of the first 3 prompts run", turns) in notes
    _, notes = bench([GLUED, PARTED], "half", format=format)
    assert not any("run into" in note for note in notes)
    if turns:
        _, notes = bench([GLUED], "chat", format=format, style="chat")
        assert not any("into the completion" in note for note in notes)


@pytest.mark.parametrize(
    ("prompt", "completion", "joined"),
    [
        ("there?", "Let x", True),
        ("the mu", "les", True),
        ("1", "2", True),
        ("Answer:", "x", True),
        ("there? ", "Let x", False),
        ("there?", "\nLet x", False),
        ("<|assistant|>", "Let x", False),
        ("def f(", "x):", False),
        ("x =", "1", False),
        ("the mule", ", and", False),
        ("你好吗", "我很好", False),
        ("", "x", False),
        ("x", "", False),
    ],
)
def test_where_two_texts_run_into_one(prompt: str, completion: str, joined: bool) -> None:
    assert joined_words(prompt, completion) == joined


def test_what_is_not_clear_stops_the_run_before_anything_is_written(bench: Bench) -> None:
    with pytest.raises(ConfigError) as caught:
        bench([{"question": "a", "answer": "b"}])
    message = str(caught.value)
    assert message.startswith(
        "sources.a: format auto: in rows.jsonl, the first 1 row, with `question` (text), `answer`"
    )
    assert "keys: {prompt: question, completion: answer}" in message
    left = sorted(path.name for path in (bench.folder / "out").rglob("*") if path.is_file())
    assert left == ["failed.json", "run-000001.json"]  # for whoever waits for it
    with pytest.raises(ConfigError, match=r"format auto found messages, because .*; but style is for alpaca"):
        bench(CHATS, style="chat")


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


def test_one_example_a_turn_and_no_held_out_conversation_is_cut_through(bench: Bench) -> None:
    rows = [{"messages": chat("Hi", f"a{i}", "and", f"b{i}", "so", f"c{i}")} for i in range(40)]
    config = bench.config(rows, expand="per_turn").model_copy(update={"holdout": HoldoutConfig(fraction=0.3)})
    manifest = run(config, base=bench.folder)
    assert manifest.ledger.total().examples_made == 120
    held = manifest.ledger.total().examples_packed["holdout"]
    assert 0 < held < 120
    assert held % 3 == 0


def test_a_turn_of_its_own_refuses_a_mask_that_trains_the_others_again(bench: Bench) -> None:
    data = bench.config(CHATS, format="messages", expand="per_turn").model_dump()
    try:
        RunConfig.model_validate(data | {"mask": "last_assistant"})
    except ValueError:
        pytest.skip("this version knows no policy about turns")
    with pytest.raises(ValueError, match="mask assistant would train the earlier turns of source 'a' again"):
        RunConfig.model_validate(data | {"mask": "assistant"})


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


@pytest.mark.parametrize("workers", [1, 2])
def test_a_reader_beside_the_configuration(bench: Bench, workers: int) -> None:
    (bench.folder / "odd_reader.py").write_text(READER, encoding="utf-8")
    (bench.folder / "helper.py").write_text(HELPER, encoding="utf-8")
    manifest, _ = bench(ODD, format="python:odd_reader:read", workers=workers)
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
    with pytest.raises(OutputError, match=r"the code of the reader of source a has changed"):
        bench(rows, format=written("row['body'] + '?'"))
    other, _ = bench(rows, "other", format="python:plain_reader:read")
    assert bench.parts() > parts
    assert other.splits["train"].shards[0].hash != first.splits["train"].shards[0].hash


@pytest.mark.parametrize(
    ("format", "message"),
    [
        ("python:no_such_module_here:read", "sources.a.format: the module no_such_module_here is neither in "),
        ("python:broken_reader:read", "broken_reader.py, line 1: the reader cannot be loaded: ZeroDivisionError"),
        ("python:fine_reader:raed", "fine_reader.py: raed is not in it"),
        ("python:sys:exit", "sources.a.format: the module sys is not written in Python"),
    ],
)
def test_a_reader_that_cannot_be_used_stops_the_run(bench: Bench, format: str, message: str) -> None:
    (bench.folder / "broken_reader.py").write_text("1 / 0\n")
    (bench.folder / "fine_reader.py").write_text("def read(row): ...\n")
    with pytest.raises(ConfigError) as caught:
        bench([{"a": 1}], format=format)
    assert message in str(caught.value)
    left = sorted(path.name for path in (bench.folder / "out").rglob("*") if path.is_file())
    assert left in ([], ["failed.json", "run-000001.json"])  # nothing, or why it failed, for whoever waits for it


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"format": "python:readers.py:read"}, "python:module:function"),
        ({"format": "python"}, "write your own reader as python:module:function, such as python:readers:chat"),
        ({"format": "mesages"}, "; did you mean messages?"),
        ({"format": "text", "keys": {"prompt": "a"}}, "keys.prompt: format text takes text"),
        ({"format": "python:a:b", "keys": {"prompt": "a"}}, "keys.prompt: format python:a:b renames none"),
        (
            {"format": "messages", "style": "chat"},
            "style is for alpaca, prompt_completion, preference, not for format ",
        ),
        ({"format": "apps", "style": "chat"}, "apps has its own, apps.style"),
        ({"format": "text", "expand": "per_turn"}, "expand: rows of format text have no turns"),
        ({"format": "preference", "expand": "per_turn"}, "expand: rows of format preference have no turns"),
    ],
)
def test_a_source_that_contradicts_itself_is_refused(bench: Bench, source: Row, message: str) -> None:
    with pytest.raises(ValueError, match=r"sources") as caught:
        bench.config([{"a": 1}], **source)
    assert message in str(caught.value)


def test_the_format_of_every_source_by_itself(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", CHATS)
    write(tmp_path / "b.jsonl", [{"text": "x"}])
    sources = [{"name": name, "path": f"{name}.jsonl"} for name in "ab"]
    config = RunConfig.model_validate({"out": "out", "tokenizer": {"path": "t"}, "sources": sources})
    files = [file for source in config.sources for file in scan_source(source, tmp_path, tmp_path / "cache")]
    found = resolve_formats(config, tmp_path, files)
    assert {name: form.name for name, form in found.items()} == {"a": "messages", "b": "text"}


def test_a_dry_run_says_what_was_found(bench: Bench) -> None:
    config = bench.config(CHATS)
    prepared, _ = look_ahead(config, open_workspace(config, bench.folder, Silent()))
    assert {name: form.name for name, form in prepared.formats.items()} == {"a": "messages"}


def test_the_reader_of_the_page_about_formats_runs(bench: Bench) -> None:
    page = (Path(__file__).parents[3] / "docs" / "formats.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (bench.folder / "page_readers.py").write_text(code, encoding="utf-8")
    turns = [{"who": "user", "said": "Hi"}, {"who": "assistant", "said": "Hello"}]
    rows: list[Row] = [{"reviewed": True, "turns": turns, "thread": "t"}, {"reviewed": False}]
    manifest, _ = bench(rows, format="python:page_readers:chat")
    total = manifest.ledger.total()
    assert (total.rows_used, total.rows_filtered, total.rows_rejected) == (1, {"not_wanted": 1}, {})


def test_the_page_about_formats_names_every_format_and_key() -> None:
    page = (Path(__file__).parents[3] / "docs" / "formats.md").read_text(encoding="utf-8")
    for format, keys in FORMAT_KEYS.items():
        assert f"`{format}`" in page
        assert [key for key in keys if f"`{key}`" not in page] == []


def test_tokens_are_packed_as_they_are(bench: Bench, read_rows: Any) -> None:
    rows: list[Row] = [
        {"input_ids": [5, 6, 7, 8], "labels": [-100, -100, 7, 8], "attention_mask": [1, 1, 1, 1]},
        {"input_ids": [9, 5, 6], "assistant_masks": [0, 0, 1]},
        {"input_ids": [9, 5, 6], "labels": [5, 6, -100]},
    ]
    manifest, notes = bench(rows)
    assert "format tokenized, because all of the first 3 rows have `input_ids`" in notes[0]
    assert manifest.ledger.total().rows_rejected == {"bad_labels": 1}
    (packed,) = read_rows(bench.folder / "out")
    assert (packed["input_ids"], packed["labels"]) == ([5, 6, 7, 8, 9, 5, 6], [-100, -100, 7, 8, -100, -100, 6])
