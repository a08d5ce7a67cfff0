"""A run that must encode again what an earlier one has encoded says how the two differ."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.encode.cache_misses import FOLDER
from packtrain.pipeline.observer import Silent
from packtrain.pipeline.run.driver import look_ahead, run
from packtrain.pipeline.run.workspace import open_workspace
from packtrain.schemas.config.config import RunConfig
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
def misses(little: Any, heard: Listening, tmp_path: Path) -> Callable[..., list[str]]:
    """What runs of the small corpus with changes say of misses: `misses(lambda config: …)`."""
    little.copy(tmp_path)
    number = iter(range(100))

    def say(change: Callable[[dict[str, Any]], Any] = lambda config: None, *, dry: bool = False) -> list[str]:
        config = json.loads(little.config.read_text()) | {"out": f"out-{next(number)}"}
        change(config)
        heard.notes.clear()
        if dry:
            loaded = RunConfig.model_validate(config)
            look_ahead(loaded, open_workspace(loaded, tmp_path, heard))
        else:
            run(config, base=tmp_path, observer=heard)
        return [note for note in heard.notes if " encoded again" in note]

    return say


def test_what_is_reused_or_new_is_no_miss(misses: Callable[..., list[str]], tmp_path: Path) -> None:
    assert misses(lambda config: config.update(seed=7)) == []
    with (tmp_path / "inputs" / "a.jsonl").open("w") as file:
        file.write('{"text": "nothing like it"}\n' * 90)
    assert misses() == []


def test_the_field_that_differs_is_named(misses: Callable[..., list[str]]) -> None:
    def change(config: dict[str, Any]) -> None:
        config["sources"][1]["max_row_bytes"] = "1MiB"

    for dry in (True, False):
        (note,) = misses(change, dry=dry)
        assert note.startswith(
            "source b: its one block is encoded again: sources.b.max_row_bytes (16777216 → 1048576) "
        )
        assert "differs from the parts made on 20" in note
    assert misses(change) == []


def test_parts_of_another_format_are_not_spoken_of(misses: Callable[..., list[str]], tmp_path: Path) -> None:
    row = {"text": "some words", "prompt": "some ", "completion": "words"}
    (tmp_path / "inputs" / "b.jsonl").write_text(json.dumps(row) + "\n")

    def read_as(format: str) -> Callable[[dict[str, Any]], None]:
        return lambda config: config["sources"][1].update(format=format, keys={})

    misses(read_as("text"))
    assert misses(read_as("prompt_completion")) == []


def test_a_run_that_fails_does_not_speak_of_parts(misses: Callable[..., list[str]], heard: Listening) -> None:
    def change(config: dict[str, Any]) -> None:
        config["sources"][1]["max_row_bytes"] = "1MiB"
        config["truncate"] = {"max_length": 2, "overlong": "error"}

    with pytest.raises(InputError, match="longer than"):
        misses(change)
    assert not [note for note in heard.notes if " encoded again" in note]


def test_the_tokenizer_is_told_from_its_engine(
    misses: Callable[..., list[str]], make_tokenizer: Callable[..., Path]
) -> None:
    def engine(config: dict[str, Any]) -> None:
        config["tokenizer"]["engine"] = "tokenizers"

    notes = misses(engine)
    if notes:  # where another one is installed, which `auto` takes
        assert len(notes) == 3
        assert "the tokenizer engine (" in notes[0]
        assert "→ tokenizers), the engine's version (" in notes[0]

    def other(config: dict[str, Any]) -> None:
        config["tokenizer"].update(engine="tokenizers", path=str(make_tokenizer("other")))

    notes = misses(other)
    assert len(notes) == 3
    assert "again: the tokenizer" in notes[0].replace("what the tokenizer puts around a text, ", "")


def test_a_source_under_another_name_and_beside_others_is_known(misses: Callable[..., list[str]]) -> None:
    def change(config: dict[str, Any]) -> None:
        config["sources"] = [{**config["sources"][2], "name": "else", "format": "auto", "keys": {"text": "text"}}]
        config["sources"][0]["max_row_bytes"] = 1 << 20

    (note,) = misses(change)
    assert note.startswith("source else: its one block is encoded again: sources.else.max_row_bytes (")


def test_parts_that_are_gone_are_said_to_be(misses: Callable[..., list[str]], tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "cache" / "encoded")
    notes = misses()
    assert len(notes) == 3
    assert "source a: its one block is encoded again: the parts made on 20" in notes[0]


def test_a_damaged_note_says_nothing(misses: Callable[..., list[str]], tmp_path: Path) -> None:
    misses()
    notes = sorted((tmp_path / "cache" / FOLDER).iterdir())
    assert len(notes) == 3
    shutil.rmtree(tmp_path / "cache" / "encoded")
    for note, data in zip(notes, (b"", b"{}", notes[2].read_bytes()[:-9]), strict=True):
        note.write_bytes(data)
    assert misses() == []


def test_the_last_run_is_what_is_compared_with(misses: Callable[..., list[str]]) -> None:
    def rows_of(size: int) -> Callable[[dict[str, Any]], None]:
        return lambda config: config["sources"][1].update(max_row_bytes=size)

    misses(rows_of(1 << 20))
    (note,) = misses(rows_of(1 << 21))
    assert "(1048576 → 2097152)" in note
    assert misses(rows_of(1 << 20)) == [], "the cache has its parts still"
