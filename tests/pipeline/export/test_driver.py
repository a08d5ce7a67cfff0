"""Exports that are killed, damaged, repeated, or made by several processes: the bytes are always the same."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.dataset.open import open_dataset
from packtrain.pipeline.export import driver
from packtrain.pipeline.export.driver import ExportOutcome, export
from packtrain.pipeline.export.manifest import NAME
from packtrain.pipeline.export.options import FORMATS, export_options
from packtrain.pipeline.export.verify import verify_export
from packtrain.pipeline.observer import Silent
from packtrain.pipeline.run.driver import run

from tests.support import warm

pytestmark = pytest.mark.xdist_group("exports")
Made = Callable[[str], Path]
KILLER = """
import os, signal

puts, put = 0, os.link

def killing(*arguments, **options):
    global puts
    puts += 1
    put(*arguments, **options)
    if puts == int(os.environ["KILL_AT"]):
        os.kill(os.getpid(), signal.SIGKILL)

os.link = killing
"""


class Notes(Silent):
    """Keeps the notes, and which stages ran."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.stages: list[tuple[str, int]] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def begin(self, stage: str, total: int, unit: str) -> None:
        self.stages.append((stage, total))


def contents(out: Path) -> dict[str, bytes]:
    """Every file of an export, without notes of its runs."""
    names = {path: path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for path, name in names.items() if not name.startswith("_run/")}


def make(dataset: Path, out: Path, to: str, workers: int = 1, observer: Silent | None = None) -> ExportOutcome:
    """An export with options that any of the datasets can have."""
    options = export_options(to, eos_id=500_000) if to == "olmo-core" else export_options(to)
    return export(dataset, out, options, workers=workers, observer=observer)


@pytest.mark.slow
@pytest.mark.parametrize("to", [name for name in FORMATS if name != "olmo-core"])
def test_a_killed_export_goes_on(made: Made, tmp_path: Path, to: str) -> None:
    whole = tmp_path / "whole"
    make(made("bfd"), whole, to)
    out, codes = tmp_path / "out", []
    for kill_at in (4, 3, 5, 2, 99):
        command = ["export", made("bfd"), "--to", to, "--out", out, "--workers", 1]
        process = warm.Process(command, env={**os.environ, "KILL_AT": str(kill_at)}, patch=KILLER)
        _, err = process.communicate(timeout=60)
        codes.append(process.returncode)
        assert process.returncode in (0, -signal.SIGKILL), err
        if not (out / NAME).exists():
            assert process.returncode != 0
    assert codes[0] == -signal.SIGKILL
    assert codes[-1] == 0
    assert contents(out) == contents(whole)
    assert not list(out.rglob(".tmp-*"))


def test_a_finished_export_is_left_alone(made: Made, tmp_path: Path) -> None:
    first = make(made("bfd"), tmp_path / "out", "megatron")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    notes = Notes()
    second = make(made("bfd"), tmp_path / "out", "megatron", observer=notes)
    assert (first.changed, second.changed) == (True, False)
    assert second.manifest == first.manifest
    assert notes.notes == [f"{tmp_path / 'out'} is already exported"]
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before


def test_only_what_is_missing_or_damaged_is_made_again(made: Made, tmp_path: Path) -> None:
    out = tmp_path / "out"
    make(made("bfd"), out, "megatron")
    whole = contents(out)
    kept, flipped, gone = (out / "train" / f"{name}.bin" for name in ("00000", "00001", "00002"))
    data = bytearray(flipped.read_bytes())
    data[7] ^= 1
    flipped.write_bytes(data)
    gone.unlink()
    stamp = kept.stat().st_mtime_ns
    found = verify_export(out, deep=True).findings
    assert {str(one) for one in found} == {
        "train/00001.bin: does not match its hash in the manifest",
        "train/00002.bin: is missing",
    }
    (out / "train" / "stray.bin").write_bytes(b"x")
    assert "train/stray.bin" in {one.where for one in verify_export(out).findings}
    (out / "train" / "stray.bin").unlink()
    notes = Notes()
    make(made("bfd"), out, "megatron", observer=notes)
    assert contents(out) == whole
    assert notes.notes == [f"{flipped} is damaged, and is made again"]
    shards = open_dataset(made("bfd")).manifest.splits["train"].shards
    assert notes.stages == [("export", shards[1].tokens + shards[2].tokens)]
    assert kept.stat().st_mtime_ns == stamp


@pytest.mark.slow
def test_the_bytes_depend_on_neither_workers_nor_place(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(made("bfd"), tmp_path / "one", "mds")
    monkeypatch.setattr(driver, "ALONE_TOKENS", 0)
    shutil.copytree(made("bfd"), tmp_path / "moved")
    make(tmp_path / "moved", tmp_path / "two", "mds", workers=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_a_split_without_rows(little: Any, tmp_path: Path) -> None:
    """A held-out part that nothing fell into has a shard all the same, and an export without files for it."""
    (tmp_path / "one.jsonl").write_text('{"text": "the mules left before sun was up"}\n')
    tokenizer = json.loads(little.config.read_text())["tokenizer"]
    config = {
        "out": "packed",
        "tokenizer": tokenizer,
        "sources": [{"name": "one", "format": "text", "path": "one.jsonl"}],
        "holdout": {"fraction": 0.0001},
        "run": {"workers": 1, "report": False},
    }
    manifest = run(config, base=tmp_path)
    assert [split.rows for split in manifest.splits.values()] in ([1, 0], [0, 1])
    for to in FORMATS:
        outcome = make(tmp_path / "packed", tmp_path / to, to)
        assert sorted(split.rows for split in outcome.manifest.splits.values()) == [0, 1]
        assert verify_export(tmp_path / to, deep=True).sound
