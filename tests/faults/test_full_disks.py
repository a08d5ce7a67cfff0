"""Disks that are full or can only be read: an error that says so, and afterwards the bytes of an undisturbed run."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copytree

import pytest
from packtrain.schemas.errors import PacktrainError

from tests.kit import packed, saved, tree
from tests.support.mortal import mortal
from tests.support.whole_run import Whole

Mount = Callable[[str], Path]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Mount]:
    """`disk("size=4m")` is a folder on a file system in memory, made or changed."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(options: str) -> Path:
        again = "remount," if place.is_mount() else ""
        command = ["mount", "-t", "tmpfs", "-o", again + options, "tmpfs", str(place)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"mounting is not permitted: {done.stderr.strip()}")
        return place

    yield mount
    if place.is_mount():
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("which", ["out", pytest.param("cache", marks=pytest.mark.slow)])
def test_a_disk_that_fills_up_and_grows(
    whole: Whole, tmp_path: Path, disk: Mount, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    """The disk of the output alone, or of the cache alone, is made larger by a few pages each time."""
    place = disk("size=64k")
    config = {**whole.copy(tmp_path, "user"), which: str(place / which)}
    monkeypatch.setenv("PACKTRAIN_CACHE", str(tmp_path / "user"))
    full = 0
    for kibibytes in range(64, 16384, 64):
        disk(f"size={kibibytes}k")
        try:
            packed(config, tmp_path)
            break
        except PacktrainError as error:
            said = str(error)
            assert "is full; free some space" in said, said
            assert str(place) in said
            full += 1
            assert not (Path(config["out"]) / "manifest.json").exists()
    assert full > 2
    assert tree(Path(config["out"])) == whole.files


def test_a_file_that_cannot_be_written_to_its_end(whole: Whole, tmp_path: Path) -> None:
    """With a limit of bytes a file, every write may fail in the middle, whoever runs the test."""
    config = whole.copy(tmp_path / "work", "user")
    environment = {"PACKTRAIN_CACHE": str(tmp_path / "work" / "user")}
    ended = mortal(tmp_path / "puts", "run", saved(config), largest=300, environment=environment)
    assert ended.code in (1, 2), ended
    assert "Traceback" not in ended.said
    assert str(tmp_path / "work") in ended.said.replace("\n", "")
    assert not (tmp_path / "work" / "out" / "manifest.json").exists()
    ended = mortal(tmp_path / "puts", "run", saved(config), environment=environment)
    assert ended.code == 0, ended
    assert tree(tmp_path / "work" / "out") == whole.files


def test_a_cache_that_can_only_be_read_will_do(
    whole: Whole, tmp_path: Path, disk: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = whole.copy(tmp_path, "cache", "user")
    monkeypatch.setenv("PACKTRAIN_CACHE", str(tmp_path / "user"))
    place = disk("size=64m")
    copytree(tmp_path / "cache", place / "cache")
    disk("ro")
    config = {**config, "cache": str(place / "cache")}
    packed(config, tmp_path)
    assert tree(tmp_path / "out") == whole.files
    sources = [{**one, "max_row_bytes": "1MiB"} for one in config["sources"]]
    other = {**config, "out": str(tmp_path / "other"), "sources": sources}
    with pytest.raises(PacktrainError, match="cannot be written: Read-only file system"):
        packed(other, tmp_path)
