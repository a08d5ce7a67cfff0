"""Faults, injected for real: whatever happens, what comes out in the end is what an undisturbed run makes.

Other files of this folder have more of them: test_bad_input.py (signals, full and read-only disks), test_executors.py
(workers that die), test_objectstore_run.py (stores that fail), test_repair.py and test_clean.py (what is repaired).
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.dataset.clean import Cleaning
from packtrain.pipeline.dataset.output_folder import read_manifest
from packtrain.pipeline.dataset.verify import verify
from packtrain.pipeline.observer import Silent
from packtrain.pipeline.run.driver import run
from packtrain.pipeline.store.local import LocalStore
from packtrain.schemas.errors import InputError, PacktrainError

from tests.support import warm

# Runs in the driver, and so in all processes that it forks. Every put ends with one of these two calls, whichever
# process makes it.
KILLER = """
import fcntl, os, signal

def counted(call):
    def put(*arguments, **options):
        counter = os.open(os.environ["PUTS"], os.O_RDWR | os.O_CREAT | os.O_APPEND)
        fcntl.flock(counter, fcntl.LOCK_EX)
        os.write(counter, b".")
        number = os.fstat(counter).st_size
        os.close(counter)
        mine = number == int(os.environ["KILL_AT"])
        if mine and os.environ["KILL_WHEN"] == "before":
            kill()
        result = call(*arguments, **options)
        if mine:
            kill()
        return result
    return put

def kill():
    {"self": lambda: os.kill(os.getpid(), signal.SIGKILL),
     "driver": lambda: os.kill(os.getpgrp(), signal.SIGKILL),
     "group": lambda: os.killpg(os.getpgrp(), signal.SIGKILL)}[os.environ["KILL_WHOM"]]()
    signal.pause()

os.link, os.replace = counted(os.link), counted(os.replace)
"""


@dataclass(frozen=True)
class Kill:
    """Which put, whether before or after it, and whom: the process that makes it, the driver, or the whole group."""

    at: int
    when: str
    whom: str
    workers: int


class Killing:
    """Kills runs of the small corpus, lets them go on, and compares."""

    def __init__(self, little: Any, folder: Path) -> None:
        self.little = little
        self.folder = folder
        self.whole = little.files()
        self.manifest = read_manifest(LocalStore(little.out))

    def disturbed(self, name: str, kills: Iterable[Kill]) -> list[int]:
        """One output, killed again and again, then finished. Returns the exit codes of the killed runs."""
        place = self.folder / name
        config = self.copy(place)
        codes = []
        done_before = False
        for kill in kills:
            codes.append(self.run(config, kill).returncode)
            done_before |= self.is_not_half(place / "out")
        done = warm.run(["run", config])
        assert (done.returncode, done.stderr) == (0, ""), (kills, done)
        assert self.little.files(place / "out") == self.whole, kills
        assert verify(place / "out", deep=True).sound
        if not done_before:  # a run that finds everything done does not look around
            assert list((place / "out").rglob(".tmp-*")) == [], kills
        # The cache's large folders are searched only where parts are missing.
        with Cleaning(LocalStore(place / "cache"), [LocalStore(place / "out")]) as cleaning:
            cleaning.remove(item for item in cleaning.find() if item.kind == "draft")
        assert list(place.rglob(".tmp-*")) == [], kills
        shutil.rmtree(place)
        return codes

    def copy(self, place: Path) -> Path:
        """The configuration of a copy whose inputs are old enough to be noted: every run puts as often."""
        config: Path = self.little.copy(place, cache=False, out=False)
        time.sleep(0.2)
        return config

    def run(self, config: Path, kill: Kill) -> "subprocess.CompletedProcess[str]":
        """One run with its killer; waits for the group to be gone."""
        puts = config.parent / "puts"
        puts.unlink(missing_ok=True)
        environment = {
            **os.environ,
            "PUTS": str(puts),
            "KILL_AT": str(kill.at),
            "KILL_WHEN": kill.when,
            "KILL_WHOM": kill.whom,
        }
        command = ["run", str(config), "--workers", str(kill.workers)]
        process = warm.Process(command, env=environment, patch=KILLER)
        out, err = process.communicate(timeout=120)
        end = time.monotonic() + 20
        while _group_lives(process.pid):
            assert time.monotonic() < end, "it left processes behind"
            time.sleep(0.01)
        assert process.returncode is not None
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def is_not_half(self, out: Path) -> bool:
        """What can be read as finished is finished. Returns whether it is."""
        manifest = read_manifest(LocalStore(out))
        if manifest is not None:
            assert manifest == self.manifest
            assert self.little.files(out) == self.whole
        return manifest is not None

    def count(self, workers: int) -> int:
        """Puts of an undisturbed run."""
        config = self.copy(self.folder / f"count-{workers}")
        assert self.run(config, Kill(0, "before", "self", workers)).returncode == 0
        puts: int = (config.parent / "puts").stat().st_size
        return puts


def _group_lives(leader: int) -> bool:
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return False
    members = subprocess.run(["ps", "-o", "stat=", "-g", str(leader)], capture_output=True, text=True, check=False)
    return any(not line.startswith("Z") for line in members.stdout.split())


@pytest.fixture
def killing(little: Any, tmp_path: Path) -> Killing:
    return Killing(little, tmp_path)


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again(killing: Killing) -> None:
    puts = killing.count(1)
    assert puts > 20
    chance = random.Random(17)
    kills = [Kill(chance.randrange(1, puts // 3), "before", "group", 1) for _ in range(2)]
    assert killing.disturbed("often", kills) == [-signal.SIGKILL] * 2
    assert killing.disturbed("late", [Kill(puts - 4, "after", "group", 2)]) == [-signal.SIGKILL]


@pytest.mark.slow
def test_a_kill_at_every_put(killing: Killing) -> None:
    """Before or after each put of a run in one process; the next put's before is this one's after."""
    puts = killing.count(1)
    kills = [
        Kill(at, when, "group", 1) for at, when in zip(range(1, puts + 1), cycle(["before", "after"]), strict=False)
    ]
    kills.append(Kill(puts, "before", "group", 1))
    assert len(kills) > 40
    # Two kills an output: the second one meets a run that goes on. Where that has less to put, it may get through.
    chance = random.Random(19)
    chance.shuffle(kills)
    pairs = [kills[at : at + 2] for at in range(0, len(kills), 2)]
    with ThreadPoolExecutor(2) as pool:
        codes = list(pool.map(lambda one: killing.disturbed(f"at-{one[0]}", one[1]), enumerate(pairs)))
    assert all(first[0] == -signal.SIGKILL for first in codes)


@pytest.mark.slow
def test_kills_by_chance_among_several_processes(killing: Killing) -> None:
    """Of the driver alone, of the worker that puts, of all: the driver survives a worker, and no worker a driver."""
    puts = killing.count(2)
    chance = random.Random(23)
    kills = [
        Kill(chance.randrange(1, puts - 2), chance.choice(["before", "after"]), whom, 2)
        for whom in ("self", "driver", "group", "self") * 3
    ]
    with ThreadPoolExecutor(2) as pool:
        codes = list(pool.map(lambda one: killing.disturbed(f"by-{one[0]}", [one[1]]), enumerate(kills)))
    died = [code == -signal.SIGKILL for (code,) in codes]
    assert all(dead for dead, kill in zip(died, kills, strict=True) if kill.whom != "self")
    assert not all(dead for dead, kill in zip(died, kills, strict=True) if kill.whom == "self"), (
        "no worker put anything"
    )


# Bits


def flip(path: Path, chance: random.Random) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


@pytest.mark.slow
def test_a_bit_that_flips_in_the_cache_between_two_runs(little: Any, tmp_path: Path) -> None:
    config = little.copy(tmp_path)
    run(config)
    chance = random.Random(29)
    data = json.loads(config.read_text())
    seen = set()
    cached = [path for path in sorted((tmp_path / "cache").rglob("*")) if path.is_file() and path.stat().st_size]
    for number, path in enumerate(cached):
        before = path.read_bytes()
        flip(path, chance)
        out = tmp_path / f"out-{number}"
        run(data | {"out": out.name}, base=tmp_path)
        assert little.files(out) == little.files(), path
        shutil.rmtree(out)
        path.write_bytes(before)
        seen.add(path.relative_to(tmp_path / "cache").parts[0])
    assert {"encoded", "specs", "engines", "tokenizers", "history"} <= seen


@pytest.mark.slow
def test_a_bit_that_flips_in_an_interrupted_output(little: Any, tmp_path: Path) -> None:
    config = little.copy(tmp_path)
    run(config)
    out = tmp_path / "out"
    (out / "manifest.json").unlink()
    shutil.copytree(out, tmp_path / "kept")
    chance = random.Random(31)
    refused = set()
    for path in sorted((tmp_path / "kept").rglob("*")):
        if not path.is_file():
            continue
        shutil.rmtree(out)
        shutil.copytree(tmp_path / "kept", out)
        name = path.relative_to(tmp_path / "kept").as_posix()
        flip(out / name, chance)
        try:
            run(config)
        except PacktrainError:
            refused.add(name)
        else:
            assert little.files(out) == little.files(), name
    assert refused <= {"_run/plan.json"}, "what the folder is for cannot be guessed; all else is rebuilt"


# Inputs that change


class Changing(Silent):
    """Changes an input as soon as a stage begins."""

    def __init__(self, stage: str, path: Path, data: bytes) -> None:
        self.stage = stage
        self.path = path
        self.data = data

    def begin(self, stage: str, total: int, unit: str) -> None:
        if stage == self.stage:
            self.path.write_bytes(self.data)


def test_an_input_that_changes_under_a_run(little: Any, tmp_path: Path) -> None:
    config = little.copy(tmp_path, cache=False, out=False)
    path = tmp_path / "inputs" / "b.jsonl"
    good = path.read_bytes()
    for wrong in (good.replace(b"mules", b"ponys"), good[:-40], b""):
        with pytest.raises(InputError, match=f"{path} changed while it was read"):
            run(config, observer=Changing("encode", path, wrong))
        assert not (tmp_path / "out" / "manifest.json").exists()
        path.write_bytes(good)
    # Once it is encoded, the input is not needed any more.
    run(config, observer=Changing("pack", path, b"gone"))
    assert little.files(tmp_path / "out") == little.files()
    with pytest.raises(PacktrainError, match="input b of source b: has changed since"):
        run(config)


# Several drivers


@pytest.mark.slow
def test_four_drivers_on_one_output_and_four_on_one_cache(little: Any, tmp_path: Path) -> None:
    config = little.copy(tmp_path, cache=False, out=False)

    def start(*more: object) -> warm.Process:
        return warm.Process(["run", config, *more])

    same = [start() for _ in range(4)]
    other = [start("--out", tmp_path / f"other-{number}") for number in range(3)]
    ended = [(*process.communicate(timeout=120), process.returncode) for process in same]
    assert 0 in [code for *_, code in ended]
    for _, err, code in ended:
        assert code == 0 or (code == 2 and re.search(r"works on .*out\. Let it finish", err)), err
    for process in other:
        said, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (0, ""), said
    for out in (tmp_path / "out", *(tmp_path / f"other-{number}" for number in range(3))):
        assert little.files(out) == little.files()


# Tasks that kill their worker

READER = """
import os, signal
from pathlib import Path

def rows(row):
    if "kill" in row["text"] and Path(__file__).with_name("deadly").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return {"text": row["text"]}
"""


@pytest.mark.slow
def test_a_row_that_kills_every_worker(tmp_path: Path, tiny_tokenizer: Path, new_cache: Callable[[Path], Path]) -> None:
    (tmp_path / "reader.py").write_text(READER)
    (tmp_path / "deadly").touch()
    for name in ("a", "b", "c", "d"):
        rows = [f"row {number} of {name}" for number in range(200)] + (["kill"] if name == "c" else [])
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    cache = new_cache(tiny_tokenizer)
    config: dict[str, Any] = {
        "out": "out",
        "cache": str(cache),
        "tokenizer": {"path": str(tiny_tokenizer)},
        "sources": [{"name": "x", "format": "python:reader:rows", "path": [f"{name}.jsonl" for name in "abcd"]}],
        "run": {"workers": 2, "report": False},
    }
    (tmp_path / "run.yaml").write_text(json.dumps(config))
    for policy in ("stop", "continue"):
        command = ["run", tmp_path / "run.yaml", "--set", f"run.on_dead_task={policy}"]
        done = warm.run(command)
        assert done.returncode == 1, done
        assert f"{tmp_path / 'c.jsonl'} (rows 1 to 201, bytes 0 to" in done.stderr
        assert "Traceback" not in done.stderr
        assert not (tmp_path / "out" / "manifest.json").exists()
    parts = len(list(cache.glob("encoded/*/*.json")))
    assert parts == 3, "the rest went on"
    (tmp_path / "deadly").unlink()
    assert warm.run(command).returncode == 0
    config["out"] = "undisturbed"
    config["cache"] = str(new_cache(tiny_tokenizer))
    run(config, base=tmp_path)
    assert (tmp_path / "out" / "manifest.json").read_bytes() == (
        tmp_path / "undisturbed" / "manifest.json"
    ).read_bytes()


# Memory

PEAK = """
import sys, resource
from packtrain.pipeline.cli.main import main
try:
    main()
finally:
    (line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    open(sys.argv[0] + ".peak", "w").write(line.split()[1])
"""


@pytest.mark.slow
def test_a_row_of_two_hundred_megabytes_is_rejected_in_bounded_memory(little: Any, tmp_path: Path) -> None:
    config = little.copy(tmp_path, cache=False, out=False)
    peaks = []
    for row in (b"", b'{"text": "' + b"so it goes " * (200_000_000 // 11) + b'"}\n'):
        path = tmp_path / "inputs" / "c.jsonl"
        path.write_bytes((little.folder / "inputs" / "c.jsonl").read_bytes() + row)
        out = tmp_path / f"out-{len(row)}"
        command = [sys.executable, "-c", f"import sys; sys.argv[0] = {str(out)!r}\n{PEAK}", "run", config, "--out", out]
        subprocess.run(command, check=True, capture_output=True)
        peaks.append(int(out.with_name(out.name + ".peak").read_text()))
        assert verify(out, deep=True).sound
    assert "row_too_long" in (tmp_path / f"out-{len(row)}" / "rejects.jsonl").read_text()
    assert peaks[1] < peaks[0] + 48 * 1024, "KiB"


# Disks


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str, str], Path]]:
    """`mounted("name", "size=4m")` is a folder on a file system in memory, made or changed."""
    places: list[Path] = []

    def mount(name: str, options: str) -> Path:
        place = tmp_path / name
        place.mkdir(exist_ok=True)
        again = "remount," if place.is_mount() else ""
        command = ["mount", "-t", "tmpfs", "-o", again + options, "tmpfs", str(place)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"mounting is not permitted: {done.stderr.strip()}")
        places.append(place)
        return place

    yield mount
    for place in set(places):
        subprocess.run(["umount", "-l", str(place)], check=False)


@pytest.mark.parametrize("which", ["out", pytest.param("cache", marks=pytest.mark.slow)])
def test_one_disk_that_fills_up_and_grows(
    little: Any, tmp_path: Path, mounted: Callable[[str, str], Path], which: str
) -> None:
    """The disk of the output alone, or of the cache alone, is made larger by a page or two each time."""
    config = little.copy(tmp_path, cache=False, out=False)
    disk = mounted("disk", "size=64k")
    data = json.loads(config.read_text()) | {which: str(disk / which)}
    if which == "cache":
        shutil.copytree(little.tokenizers, tmp_path / "answers")
    complaints = set()
    for kibibytes in range(64, 8192, 96):
        mounted("disk", f"size={kibibytes}k")
        try:
            run(data, base=tmp_path)
            break
        except PacktrainError as error:
            message = str(error)
            assert "is full; free some space" in message or "not enough disk space for" in message, message
            complaints.add("is full" in message)
            assert read_manifest(LocalStore(Path(data["out"]) if which == "out" else tmp_path / "out")) is None
            assert list(disk.rglob(".tmp-*")) == []
    assert complaints, "there was room from the beginning"
    assert True in complaints or which == "out", "it never filled up in the middle"
    out = disk / "out" if which == "out" else tmp_path / "out"
    assert little.files(out) == little.files()


def test_a_cache_that_can_only_be_read_will_do(
    little: Any, tmp_path: Path, mounted: Callable[[str, str], Path]
) -> None:
    config = little.copy(tmp_path)
    run(config)
    disk = mounted("disk", "size=64m")
    shutil.copytree(tmp_path / "cache", disk / "cache")
    mounted("disk", "ro")
    data = json.loads(config.read_text()) | {"cache": str(disk / "cache")}
    run(data | {"out": "again"}, base=tmp_path)
    assert little.files(tmp_path / "again") == little.files()
    data["sources"][0]["max_row_bytes"] = "1MiB"
    with pytest.raises(PacktrainError, match="cannot be written: Read-only file system"):
        run(data | {"out": "other"}, base=tmp_path)
