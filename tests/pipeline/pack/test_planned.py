"""The note of a plan: a run that continues uses it only if it is whole, and made for the same run."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.pack.planned import FLAGS, NAME
from packtrain.pipeline.pack.survey import Surveyor
from packtrain.pipeline.run.driver import run
from packtrain.pipeline.store.checksummed import seal, unseal

Note = dict[str, Any]


def resealed(change: Callable[[Note], None]) -> Callable[[Path], None]:
    """Change a note and seal it again, as only an attacker or another version would."""

    def edit(out: Path) -> None:
        content = unseal((out / NAME).read_bytes())
        assert content is not None
        note = json.loads(content)
        change(note)
        (out / NAME).write_bytes(seal(json.dumps(note).encode()))

    return edit


def other_folder(note: Note) -> None:
    """Name a layout outside the folder."""
    window = note["windows"]["train"][0]
    old, window["name"] = window["name"], "../elsewhere"
    for file in window["files"]:
        file["name"] = file["name"].replace(old, "../elsewhere")


def damaged(name: str) -> Callable[[Path], None]:
    """Flip a bit in the middle of a file."""

    def flip(out: Path) -> None:
        data = bytearray((out / name).read_bytes())
        data[len(data) // 2] ^= 1
        (out / name).write_bytes(data)

    return flip


def shortened(out: Path) -> None:
    """Cut the note in half."""
    data = (out / NAME).read_bytes()
    (out / NAME).write_bytes(data[: len(data) // 2])


CHANGES: dict[str, Callable[[Path], None]] = {
    "nothing": lambda out: None,
    "no note": lambda out: (out / NAME).unlink(),
    "half a note": shortened,
    "a note with another bit": damaged(NAME),
    "flags with another bit": damaged(FLAGS),
    "pieces with another bit": damaged("_run/layout/train-00000-pieces.arrow"),
    "rows with another bit": damaged("_run/layout/holdout-00000-rows.arrow"),
    "no list of parts": lambda out: (out / "_run/layout/train-00000-parts.json").unlink(),
    "of another run": resealed(lambda note: note.update(key="0" * 64)),
    "of another version": resealed(lambda note: note.pop("tokens")),
    "without a split": resealed(lambda note: note["windows"].pop("holdout")),
    "of files elsewhere": resealed(other_folder),
    "of flags elsewhere": resealed(lambda note: note["flags"].update(name="../flags.arrow")),
    "without files": resealed(lambda note: note["windows"]["train"][0].update(files=[])),
}


@pytest.mark.parametrize("how", CHANGES)
def test_what_is_done_without_a_whole_note(
    little: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    config = little.copy(tmp_path)
    out = tmp_path / "out"
    surveys = []
    survey = Surveyor.survey

    def counted(self: Surveyor, *given: Any, **more: Any) -> Any:
        surveys.append(self)
        return survey(self, *given, **more)

    monkeypatch.setattr(Surveyor, "survey", counted)
    (out / "manifest.json").unlink()
    shutil.rmtree(out / "_run" / "train" / "shards")
    CHANGES[how](out)
    run(config)
    assert little.files(out) == little.files()
    assert len(surveys) == (how != "nothing")
    # It is noted again.
    (out / "manifest.json").unlink()
    run(config)
    assert len(surveys) == (how != "nothing")
