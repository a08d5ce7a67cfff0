"""Clean removes what is unused and nothing else: a run afterwards gives the same bytes."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.dataset.clean import old_files
from packtrain.pipeline.run.run import run
from packtrain.pipeline.store.local import LocalStore
from packtrain.pipeline.store.open_store import is_cache, mark_cache

WEEKS = 30 * 86_400


@pytest.fixture
def place(little: Any, tmp_path: Path) -> Path:
    """A copied run, with notes that name its own folder."""
    run(little.copy(tmp_path))
    return tmp_path


def age(folder: Path) -> None:
    then = time.time() - WEEKS
    for path in folder.rglob("*"):
        os.utime(path, (then, then))


def found(place: Path, days: float = 7) -> list[Path]:
    return list(old_files(LocalStore(place / "cache"), days=days))


def parts(place: Path) -> list[Path]:
    return sorted((place / "cache").glob("encoded/*/*.arrow"))


def test_what_a_run_has_used_is_kept(little: Any, place: Path) -> None:
    assert found(place) == []
    age(place / "cache")
    assert set(found(place)) >= set(parts(place))
    (place / "out" / "manifest.json").unlink()
    run(place / "run.yaml")
    assert set(parts(place)).isdisjoint(found(place)), "the run used them a moment ago"
    assert set(parts(place)).isdisjoint(found(place, days=1))
    assert little.files(place / "out") == little.files()


@pytest.fixture
def dead() -> subprocess.Popen[bytes]:
    """A process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process


def test_a_run_removes_what_killed_processes_left(place: Path, dead: subprocess.Popen[bytes]) -> None:
    drafts = [place / store / f".tmp-{os.uname().nodename}-{dead.pid}-0000000a" for store in ("out", "cache")]
    for path in drafts:
        path.write_bytes(b"half")
    (place / "out" / "manifest.json").unlink()
    run(place / "run.yaml")
    assert not any(path.exists() for path in drafts)
    drafts[0].write_bytes(b"half")
    run(place / "run.yaml")
    assert not drafts[0].exists(), "also of a finished dataset"


def test_what_killed_processes_leave(place: Path, dead: subprocess.Popen[bytes], packtrain: Callable[..., Any]) -> None:
    host = os.uname().nodename
    left = place / "cache" / f".tmp-{host}-{dead.pid}-0000000a"
    other = place / "cache" / f".tmp-{host}-{dead.pid}-7-0000000b"  # of a machine whose name begins as this one's
    mine = [place / "cache" / f".tmp-{host}-{os.getpid()}-0000000d", other]
    for path in (left, *mine):
        path.write_bytes(b"half")
    assert packtrain("clean", place / "cache", "--yes").code == 0
    assert [path for path in (left, *mine) if path.exists()] == mine
    os.utime(other, (time.time() - WEEKS,) * 2)
    assert packtrain("clean", place / "cache", "--yes").code == 0
    assert not other.exists(), "what another machine has left is removed by its age"


def test_the_command_shows_first_and_removes_only_when_told(place: Path, packtrain: Callable[..., Any]) -> None:
    part = parts(place)[0]
    done = packtrain("clean", place / "cache")
    assert (done.code, done.out) == (0, f"nothing to remove: every file of {place / 'cache'} was used within 7 days\n")
    done = packtrain("clean", place / "cache", "--older-than", 0)
    assert (done.code, "not used within 0 days; --yes removes them" in done.out) == (0, True)
    assert part.exists()
    done = packtrain("clean", place / "cache", "--older-than", 0, "--yes")
    assert "a run makes again what it needs" in done.out
    assert not part.exists()


def test_what_is_not_in_a_cache_stays(place: Path, packtrain: Callable[..., Any]) -> None:
    """Files beside the cache, behind links in it, or in folders that packtrain does not make."""
    cache, thesis = place / "cache", place / "thesis"
    thesis.mkdir()
    for path in (thesis / "a.arrow", thesis / "ab" / "b.json", cache / "mine" / "thesis.txt"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("my thesis")
    (cache / "copies" / "link").parent.mkdir(exist_ok=True)
    (cache / "copies" / "link").symlink_to(thesis)
    (cache / "encoded" / "cd").symlink_to(thesis / "ab")
    (cache / "encoded" / "file").symlink_to(thesis / "a.arrow")
    shutil.rmtree(cache / "history", ignore_errors=True)
    (cache / "history").symlink_to(thesis)
    age(thesis)
    before = {path: path.read_bytes() for path in (*thesis.rglob("*.*"), cache / "mine" / "thesis.txt")}
    done = packtrain("clean", cache, "--older-than", 0, "--yes")
    assert done.code == 0, done
    assert parts(place) == [], "what is ours is removed"
    assert {path: path.read_bytes() for path in before} == before
    assert (cache / "copies" / "link").is_symlink()
    for folder in (thesis, place):
        assert packtrain("clean", folder, "--older-than", 0, "--yes").code == 2
    assert {path: path.read_bytes() for path in before} == before


def test_a_cache_is_marked_unless_it_holds_other_things(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter").write_text("dear")
    for name, marked in (("new", True), ("home", False)):
        mark_cache(LocalStore(tmp_path / name))
        assert is_cache(tmp_path / name) == marked
    (tmp_path / "cargo").mkdir()
    (tmp_path / "cargo" / "CACHEDIR.TAG").write_text("Signature: 8a477f597d28d172789f06886806bc55\n# by cargo\n")
    assert not is_cache(tmp_path / "cargo")
