"""Other trainers' files that cannot be used: exit code 2, a reason that says what to do, and nothing written."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]


def pair(folder: Path, ids: list[int], *, version: int = 1) -> Path:
    """A Megatron pair of two documents of one sequence, int64."""
    folder.mkdir(exist_ok=True)
    half = len(ids) // 2
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", version, 5, 2, 3)
    index += struct.pack("<2i2q3q", half, len(ids) - half, 0, 8 * half, 0, 1, 2)
    (folder / "data.idx").write_bytes(index)
    (folder / "data.bin").write_bytes(struct.pack(f"<{len(ids)}q", *ids))
    return folder / "data.idx"


@pytest.fixture
def attempt(packtrain: Command, little: Any, tmp_path: Path) -> Callable[..., Any]:
    """Runs a source of format tokenized."""
    tokenizer = json.loads(little.config.read_text())["tokenizer"]["path"]

    def ask(path: Path, *arguments: object) -> Any:
        options = ("--format", "tokenized", "--tokenizer", tokenizer, "--out", tmp_path / "out", "--workers", 1)
        return packtrain("run", "--input", path, *options, *arguments)

    return ask


def test_a_damaged_pair(attempt: Callable[..., Any], tmp_path: Path) -> None:
    path = pair(tmp_path / "x", [1, 2, 3, 4], version=7)
    done = attempt(path)
    assert done.code == 2
    assert str(path) in done.err
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert not list((tmp_path / "out").glob("train*"))


def test_a_mask_that_is_asked_for(attempt: Callable[..., Any], tmp_path: Path) -> None:
    done = attempt(pair(tmp_path / "x", [1, 2, 3, 4]), "--set", "sources.0.keys.mask=loss_mask")
    assert done.code == 2


def test_ids_that_are_none(attempt: Callable[..., Any], tmp_path: Path) -> None:
    """They cost their row; of the others a dataset is made."""
    done = attempt(pair(tmp_path / "x", [1, 2, 3, 2**31]))
    assert done.code == 0, done.err
    rejected = (tmp_path / "out" / "rejects.jsonl").read_text()
    assert "bad_ids" in rejected
