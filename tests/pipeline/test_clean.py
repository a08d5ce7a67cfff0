"""Clean removes what nobody needs and nothing else: a run afterwards gives the same bytes."""

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
from packtrain.pipeline.cache_use import CacheUse
from packtrain.pipeline.clean import Cleaning, Item
from packtrain.pipeline.run import run
from packtrain.pipeline.store import LocalStore
from packtrain.pipeline.verify import verify

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
    with Cleaning(LocalStore(place / "cache"), [LocalStore(place / "out")], **options) as cleaning:
        return cleaning.find()


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
    drafts = [cache / "encoded" / f".tmp-{host}-{dead.pid}-0a", out / "train" / f".tmp-{host}-{dead.pid}-0b"]
    foreign = cache / f".tmp-elsewhere-{dead.pid}-0c"
    for path in (*drafts, foreign, cache / f".tmp-{host}-{os.getpid()}-0d", cache / ".tmp-of-somebody"):
        path.write_bytes(b"half")
    os.utime(foreign, (0, 0))
    next(record for record in records if record.stem == parts[0].name.partition("-")[0]).unlink()  # a part alone
    parts[1].unlink()  # a record alone
    damaged = next(record for record in records if record.stem == parts[2].name.partition("-")[0])
    damaged.write_bytes(damaged.read_bytes()[:-5])
    stray = out / "train" / "shards" / "00007-0123456789abcdef.arrow"
    mine = out / "train" / "shards" / "notes.txt"
    for path in (stray, mine):
        path.write_bytes(b"x")
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
    (place / "out" / "train" / "shards" / "00007-0123456789abcdef.arrow").write_bytes(b"x")
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
    assert f"is in use by process {os.getpid()}; let it finish" in done.err
    use.release()
    assert packtrain("clean", place / "run.yaml", "--all", "--yes").code == 0
    assert list((place / "cache").glob("encoded/*/*.arrow")) == []


@pytest.mark.slow
def test_a_run_at_work_keeps_its_cache_and_its_output(place: Path, packtrain: Callable[..., Any]) -> None:
    """A real run, stopped in the middle."""
    shutil.rmtree(place / "out")
    shutil.rmtree(place / "cache" / "encoded")
    program = Path(sys.executable).parent / "packtrain"
    process = subprocess.Popen([program, "run", place / "run.yaml"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
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
            assert (done.code, str(process.pid) in done.err or "a run works on" in done.err) == (2, True), done
    finally:
        process.send_signal(signal.SIGCONT)
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert verify(place / "out", deep=True).sound


def test_the_command_shows_first_and_removes_only_when_told(place: Path, packtrain: Callable[..., Any]) -> None:
    part = next((place / "cache").glob("encoded/*/*.arrow"))
    done = packtrain("clean", place / "run.yaml")
    assert (done.code, done.out) == (0, "there is nothing to remove\n")
    done = packtrain("clean", "--out", place / "out", "--all")
    assert done.code == 0
    assert "nothing was removed" in done.out
    assert str(part) in done.out.replace("\n", "")
    assert part.exists()
    done = packtrain("clean", "--cache", place / "cache", "--all", "--json")
    told = json.loads(done.out)
    assert (told["removed"], part.exists()) == (False, True)
    assert sum(file["bytes"] for file in told["files"]) == told["bytes"] > 0
    done = packtrain("clean", place / "run.yaml", "--all", "--yes", "--json")
    assert json.loads(done.out)["removed"]
    assert not part.exists()


def test_what_to_clean_must_be_said(tmp_path: Path, packtrain: Callable[..., Any]) -> None:
    assert "say what to clean" in packtrain("clean").err
    assert "is no folder" in packtrain("clean", "--cache", tmp_path / "nothing").err
    assert "s3://bucket/run is not on this machine" in packtrain("clean", "--out", "s3://bucket/run").err
    assert "not on this machine" in packtrain("clean", "--out", tmp_path, "--cache", "s3://bucket/cache").err
