"""Folders that a hostile program has filled: measured and removed without following its links."""

import os
from pathlib import Path

import pytest
from packtrain.pipeline.judge.sandbox.folders import MOST_ENTRIES, empty, is_over, remove

KIB = 1024


def test_size_is_what_lies_on_the_disk(tmp_path: Path) -> None:
    assert not is_over(tmp_path, 0)
    (tmp_path / "holes").touch()
    os.truncate(tmp_path / "holes", 1 << 40)
    (tmp_path / "outside").symlink_to("/usr")
    assert not is_over(tmp_path, 4 * KIB)
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "file").write_bytes(os.urandom(64 * KIB))
    assert is_over(tmp_path, 60 * KIB)
    assert not is_over(tmp_path, 100 * KIB)


def test_many_entries_are_too_many(tmp_path: Path) -> None:
    for number in range(MOST_ENTRIES):
        (tmp_path / str(number)).touch()
    assert not is_over(tmp_path, KIB)
    (tmp_path / "more").mkdir()
    assert is_over(tmp_path, KIB)


def bury(folder: Path, levels: int) -> None:
    """Folders within folders, beyond the length that a path may have."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("x" * 100, dir_fd=here)
        below = os.open("x" * 100, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def test_what_is_too_deep_to_measure_is_too_much(tmp_path: Path) -> None:
    folder = tmp_path / "deep"
    folder.mkdir()
    bury(folder, 60)
    assert is_over(folder, 1 << 40)
    remove(folder)
    assert not folder.exists()


@pytest.mark.parametrize("levels", [0, 3, pytest.param(1500, marks=pytest.mark.slow)])
def test_everything_is_removed_and_nothing_outside(tmp_path: Path, levels: int) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("kept")
    folder = tmp_path / "folder"
    folder.mkdir()
    bury(folder, levels)
    (folder / "link").symlink_to(kept)
    (folder / "file").symlink_to(kept / "file")
    os.mkfifo(folder / "fifo")
    (folder / "closed").mkdir()
    (folder / "closed" / "inside").mkdir()
    (folder / "closed" / "link").symlink_to(kept)
    (folder / "closed" / "inside").chmod(0)
    (folder / "closed").chmod(0)
    folder.chmod(0)
    empty(folder)
    assert list(folder.iterdir()) == []
    remove(folder)
    assert not folder.exists()
    assert (kept / "file").read_text() == "kept"
