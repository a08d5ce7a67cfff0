"""Clean removes what is unused and nothing else: a run afterwards gives the same bytes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.dataset.clean import Cleaning, Item
from packtrain.pipeline.dataset.verify import verify
from packtrain.pipeline.run.driver import run
from packtrain.pipeline.store.cache_lock import CacheUse, is_cache
from packtrain.pipeline.store.local import LocalStore

from tests.support import warm

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


def found(place: Path, **options: Any) -> list[Item]:
    """Without the notes of scans: whether there is one depends on how new the input was."""
    with Cleaning(LocalStore(place / "cache"), [LocalStore(place / "out")], **options) as cleaning:
        return [item for item in cleaning.find() if item.path.parent.name != "scans"]


def kinds(items: list[Item]) -> list[str]:
    return [item.kind for item in items]


def test_what_an_output_was_made_from_is_kept(little: Any, place: Path) -> None:
    age(place / "cache")
    assert found(place) == []
    other = json.loads(little.config.read_text()) | {"out": "other"}
    other["sources"] = [{**source, "max_row_bytes": "1MiB"} for source in other["sources"]]
    run(other, base=place)
    assert found(place, days=0) == []
    shutil.rmtree(place / "other")
    assert found(place) == [], "it is too new"
    items = found(place, days=0)
    assert kinds(items) == ["part"] * 6, "three parts and their records"
    with Cleaning(LocalStore(place / "cache"), []) as cleaning:
        assert cleaning.remove(items) == sum(item.bytes for item in items)
    assert found(place, days=0) == []
    assert len(list((place / "cache").glob("encoded/*/*.arrow"))) == 3
    run(other, base=place)
    assert verify(place / "other", deep=True).sound


def test_everything_can_be_made_again(little: Any, place: Path) -> None:
    items = found(place, everything=True)
    assert set(kinds(items)) == {"part", "layout"}
    with Cleaning(LocalStore(place / "cache"), []) as cleaning:
        cleaning.remove(items)
    assert little.files(place / "out") == little.files()
    assert verify(place / "out", deep=True).sound
    shutil.rmtree(place / "out")
    run(place / "run.yaml")
    assert little.files(place / "out") == little.files()


def test_what_a_killed_run_leaves(little: Any, place: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    host = os.uname().nodename
    cache, out = place / "cache", place / "out"
    parts = sorted(cache.glob("encoded/*/*.arrow"))
    records = sorted(cache.glob("encoded/*/*.json"))
    drafts = [
        cache / "encoded" / f".tmp-{host}-{dead.pid}-0000000a",
        out / "train" / f".tmp-{host}-{dead.pid}-0000000b",
    ]
    foreign = cache / f".tmp-elsewhere-{dead.pid}-0000000c"
    for path in (*drafts, foreign, cache / f".tmp-{host}-{os.getpid()}-0000000d", cache / ".tmp-of-somebody"):
        path.write_bytes(b"half")
    os.utime(foreign, (0, 0))
    next(record for record in records if record.stem == parts[0].name.partition("-")[0]).unlink()  # a part alone
    parts[1].unlink()  # a record alone
    damaged = next(record for record in records if record.stem == parts[2].name.partition("-")[0])
    damaged.write_bytes(damaged.read_bytes()[:-5])
    stray = out / "train" / "shards" / "00007-0123456789abcdef.arrow"
    mine = out / "train" / "shards" / "notes.txt"
    shutil.copy(next((out / "train" / "shards").glob("00000-*")), stray)
    mine.write_bytes(b"x")
    items = found(place)
    orphans = {parts[0], parts[2], damaged, *(record for record in records if record.stem == parts[1].name[:64])}
    assert {item.path for item in items} == {*drafts, foreign, stray, *orphans}
    assert kinds(items) == ["draft"] * 3 + ["orphan"] * 4 + ["stray"]
    with Cleaning(None, []) as cleaning:
        cleaning.remove(items)
    assert mine.exists()
    mine.unlink()
    shutil.rmtree(out)
    run(place / "run.yaml")
    assert little.files(out) == little.files()


def test_shards_of_an_interrupted_run_are_kept(little: Any, place: Path) -> None:
    (place / "out" / "manifest.json").unlink()
    shards = place / "out" / "train" / "shards"
    shutil.copy(next(shards.iterdir()), shards / "00007-0123456789abcdef.arrow")
    (item,) = found(place, days=0)
    assert item.path.name == "00007-0123456789abcdef.arrow"
    with Cleaning(None, []) as cleaning:
        cleaning.remove([item])
    run(place / "run.yaml")
    assert little.files(place / "out") == little.files()


def test_a_cache_in_use_is_left_alone(place: Path, packtrain: Callable[..., Any]) -> None:
    use = CacheUse(LocalStore(place / "cache"))
    done = packtrain("clean", place / "run.yaml", "--all", "--yes")
    assert done.code == 2
    assert str(os.getpid()) in done.err
    use.release()
    assert packtrain("clean", place / "run.yaml", "--all", "--yes").code == 0
    assert list((place / "cache").glob("encoded/*/*.arrow")) == []


@pytest.mark.slow
def test_a_run_at_work_keeps_its_cache_and_its_output(place: Path, packtrain: Callable[..., Any]) -> None:
    """A real run, stopped in the middle."""
    shutil.rmtree(place / "out")
    shutil.rmtree(place / "cache" / "encoded")
    process = warm.Process(["run", place / "run.yaml"])
    try:
        end = time.monotonic() + 30
        while not (place / "cache" / "encoded").exists():
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.002)
        process.send_signal(signal.SIGSTOP)
        assert not (place / "out" / "manifest.json").exists()
        for arguments in (["--cache", place / "cache"], ["--out", place / "out"], [place / "run.yaml"]):
            done = packtrain("clean", *arguments, "--all", "--yes")
            assert (done.code, str(process.pid) in done.err or "working on" in done.err) == (2, True), done
    finally:
        process.send_signal(signal.SIGCONT)
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert verify(place / "out", deep=True).sound


def test_the_command_shows_first_and_removes_only_when_told(place: Path, packtrain: Callable[..., Any]) -> None:
    part = next((place / "cache").glob("encoded/*/*.arrow"))
    done = packtrain("clean", place / "run.yaml")
    assert (done.code, done.out) == (0, "nothing to remove\n")
    done = packtrain("clean", "--out", place / "out", "--cache", place / "cache", "--all")
    assert done.code == 0
    assert str(part) in done.out.replace("\n", "")
    assert part.exists()
    done = packtrain("clean", "--cache", place / "cache", "--all", "--json")
    listed = json.loads(done.out)
    assert (listed["removed"], part.exists()) == (False, True)
    assert sum(file["bytes"] for file in listed["files"]) == listed["bytes"] > 0
    done = packtrain("clean", place / "run.yaml", "--all", "--yes", "--json")
    assert json.loads(done.out)["removed"]
    assert not part.exists()


def test_what_is_not_ours_stays(place: Path, packtrain: Callable[..., Any]) -> None:
    cache, thesis = place / "cache", place / "thesis"
    thesis.mkdir()
    hexes = "ab" * 32
    names = [
        "hub/models--a--b/blobs/" + hexes,
        "hub/x.arrow",
        "hub/a/b/c/" + "a" * 40 + "/notes.arrow",
        "remote/notes.txt",
        f"remote/{hexes[:40]}.jsonl",
        f"remote/{hexes}.json",
        f"copies/ab/{hexes}",
        f"blocks/ab/{hexes}.zst",
        f"scans/{hexes}.json",
        f"encoded/ab/{hexes}.json",
        f"encoded/ab/{hexes}-{hexes[:16]}.arrow",
        "encoded/ab/thesis.arrow",
        "thesis.txt",
    ]
    for name in names:
        for root in (cache, thesis):
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("my thesis")
    linked = cache / "copies" / "link"
    linked.symlink_to(thesis)
    (cache / "encoded" / "cd").symlink_to(thesis / "encoded" / "ab")
    shutil.rmtree(cache / "history", ignore_errors=True)
    (cache / "history").symlink_to(thesis)
    part = next(cache.glob("encoded/*/*.arrow"))
    for path in (thesis / "encoded" / "ab").iterdir():  # what would be ours if it were in the cache
        shutil.copy(part, path)
    (thesis / f".tmp-{os.uname().nodename}-99999999-00000001").write_text("half")
    age(cache)
    age(thesis)
    before = {path: path.read_bytes() for path in thesis.rglob("*") if path.is_file()}
    done = packtrain("clean", "--cache", cache, "--all", "--yes")
    assert done.code == 0, done
    assert not part.exists(), "what is ours is removed"
    assert {path: path.read_bytes() for path in thesis.rglob("*") if path.is_file()} == before
    assert linked.is_symlink()
    assert [name for name in names if not (cache / name).exists()] == []
    for folder in (thesis, place):
        done = packtrain("clean", "--cache", folder, "--all", "--yes")
        assert done.code == 2
    assert {path: path.read_bytes() for path in thesis.rglob("*") if path.is_file()} == before


def test_a_dataset_does_not_say_what_to_clean(place: Path, packtrain: Callable[..., Any]) -> None:
    parts = sorted((place / "cache").rglob("*.arrow"))
    done = packtrain("clean", "--out", place / "out", "--all", "--yes")
    assert done.code == 0
    assert parts == sorted((place / "cache").rglob("*.arrow"))
    (place / "out" / "_run" / "layout").rename(place / "elsewhere")
    (place / "out" / "_run" / "layout").symlink_to(place / "elsewhere")
    held = sorted((place / "elsewhere").iterdir())
    assert packtrain("clean", "--out", place / "out", "--all", "--yes").code == 1
    assert held == sorted((place / "elsewhere").iterdir())


def test_a_cache_of_an_earlier_version_is_marked_by_a_run(place: Path, packtrain: Callable[..., Any]) -> None:
    (place / "cache" / "CACHEDIR.TAG").unlink()
    done = packtrain("clean", place / "run.yaml")
    assert done.code == 2
    assert packtrain("run", place / "run.yaml").code == 0
    assert packtrain("clean", place / "run.yaml").code == 0


def test_a_cache_is_marked_unless_it_holds_other_things(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter").write_text("dear")
    for name, marked in (("new", True), ("home", False)):
        with CacheUse(LocalStore(tmp_path / name)):
            assert is_cache(tmp_path / name) == marked
    (tmp_path / "cargo").mkdir()
    (tmp_path / "cargo" / "CACHEDIR.TAG").write_text("Signature: 8a477f597d28d172789f06886806bc55\n# by cargo\n")
    assert not is_cache(tmp_path / "cargo")
