"""A run that must encode what an earlier one has encoded says in what the two differ."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from packtrain.pipeline.misses import FOLDER, NOTES, _Note, note_parts
from packtrain.pipeline.observer import Silent
from packtrain.pipeline.run import Driver, run
from packtrain.pipeline.sealed import seal
from packtrain.pipeline.store import LocalStore
from packtrain.schemas.config import RunConfig
from packtrain.schemas.errors import InputError


class Listening(Silent):
    """Keeps the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def heard() -> Listening:
    """What the last run said."""
    return Listening()


@pytest.fixture
def told(little: Any, heard: Listening, tmp_path: Path) -> Callable[..., list[str]]:
    """What runs of the small corpus with changes say of misses: `told(lambda config: …)`."""
    little.copy(tmp_path)
    number = iter(range(100))

    def say(change: Callable[[dict[str, Any]], Any] = lambda config: None, *, dry: bool = False) -> list[str]:
        config = json.loads(little.config.read_text()) | {"out": f"out-{next(number)}"}
        change(config)
        heard.notes.clear()
        if dry:
            Driver(RunConfig.model_validate(config), tmp_path, heard).prospect()
        else:
            run(config, base=tmp_path, observer=heard)
        return [note for note in heard.notes if " encoded a" in note]

    return say


def test_what_is_reused_or_new_is_no_miss(told: Callable[..., list[str]], tmp_path: Path) -> None:
    assert told(lambda config: config.update(seed=7)) == []
    with (tmp_path / "inputs" / "a.jsonl").open("w") as file:
        file.write('{"text": "nothing like it"}\n' * 90)
    assert told() == []


def test_the_field_that_differs_is_named(told: Callable[..., list[str]]) -> None:
    def change(config: dict[str, Any]) -> None:
        config["sources"][1]["max_row_bytes"] = "1MiB"

    for dry in (True, False):
        (note,) = told(change, dry=dry)
        assert note.startswith("source b: its one block is encoded anew: sources.b.max_row_bytes (16777216 → 1048576) ")
        assert "differs from the parts of 20" in note
    assert told(change) == []


def test_parts_of_another_format_are_not_spoken_of(told: Callable[..., list[str]], tmp_path: Path) -> None:
    row = {"text": "some words", "prompt": "some ", "completion": "words"}
    (tmp_path / "inputs" / "b.jsonl").write_text(json.dumps(row) + "\n")

    def read_as(format: str) -> Callable[[dict[str, Any]], None]:
        return lambda config: config["sources"][1].update(format=format, keys={})

    told(read_as("text"))
    assert told(read_as("prompt_completion")) == []


def test_a_run_that_fails_does_not_speak_of_parts(told: Callable[..., list[str]], heard: Listening) -> None:
    def change(config: dict[str, Any]) -> None:
        config["sources"][1]["max_row_bytes"] = "1MiB"
        config["truncate"] = {"max_length": 2, "overlong": "error"}

    with pytest.raises(InputError, match="longer than"):
        told(change)
    assert not [note for note in heard.notes if " encoded a" in note]


def test_the_tokenizer_is_told_from_its_engine(
    told: Callable[..., list[str]], make_tokenizer: Callable[..., Path]
) -> None:
    def engine(config: dict[str, Any]) -> None:
        config["tokenizer"]["engine"] = "tokenizers"

    notes = told(engine)
    if notes:  # where another one is installed, which `auto` takes
        assert len(notes) == 3
        assert "the tokenizer engine (" in notes[0]
        assert "→ tokenizers), the engine's version (" in notes[0]

    def other(config: dict[str, Any]) -> None:
        config["tokenizer"].update(engine="tokenizers", path=str(make_tokenizer("other")))

    notes = told(other)
    assert len(notes) == 3
    assert "anew: the tokenizer" in notes[0].replace("what the tokenizer puts around a text, ", "")


def test_a_source_under_another_name_and_beside_others_is_known(told: Callable[..., list[str]]) -> None:
    def change(config: dict[str, Any]) -> None:
        config["sources"] = [{**config["sources"][2], "name": "else", "format": "auto", "keys": {"text": "text"}}]
        config["sources"][0]["max_row_bytes"] = 1 << 20

    (note,) = told(change)
    assert note.startswith("source else: its one block is encoded anew: sources.else.max_row_bytes (")


def test_parts_that_are_gone_are_said_to_be(told: Callable[..., list[str]], tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "cache" / "encoded")
    notes = told()
    assert len(notes) == 3
    assert "source a: its one block is encoded again: their parts of 20" in notes[0]


def test_only_the_newest_notes_are_kept(tmp_path: Path) -> None:
    cache = LocalStore(tmp_path)
    for number in range(NOTES + 9):
        note = _Note(f"2020-01-01 {number:03d}", {"format": "text"}, ["ab"])
        cache.put_bytes(
            f"{FOLDER}/{number}.json",
            seal(msgspec.json.encode(note)),
        )
    cache.put_bytes(f"{FOLDER}/damaged.json", b"{}")
    note_parts(cache, [], [])
    assert {int(name.split("/")[1].removesuffix(".json")) for name in cache.names(FOLDER)} == set(range(9, NOTES + 9))
