"""Runs that are killed, and run again: the bytes of an undisturbed run, and nothing half that looks whole."""

import random
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packtrain.schemas.errors import InputError, PacktrainError

from tests.kit import Heard, cli, configure, lines, packed, saved, source, tree
from tests.support import warm
from tests.support.mortal import Ended, mortal
from tests.support.whole_run import Whole

import packtrain  # isort: skip


def drafts(folder: Path) -> list[str]:
    """Files without a name of their own yet."""
    return [str(path) for path in folder.rglob(".tmp-*")]


class Killing:
    """Kills runs of one configuration, lets them go on, and compares."""

    def __init__(self, whole: Whole, folder: Path) -> None:
        self.whole, self.folder = whole, folder

    def run(self, folder: Path, **kill: Any) -> Ended:
        environment = {"PACKTRAIN_CACHE": str(folder / "user")}
        return mortal(self.folder, "run", folder / "config.json", environment=environment, **kill)

    def puts(self, workers: int) -> int:
        """Of an undisturbed run."""
        ended = self.run(self.start("undisturbed", workers))
        assert ended.code == 0, ended
        return ended.puts

    def start(self, name: str, workers: int) -> Path:
        """A folder where nothing has run, except that the tokenizer is known."""
        folder = self.folder / name
        config = self.whole.copy(folder, "user")
        saved({**config, "run": {**config["run"], "workers": workers, "report": False}})
        return folder

    def disturbed(self, name: str, *kills: dict[str, Any], workers: int = 1) -> list[int]:
        """One output that is killed again and again and then finished; the exit codes."""
        folder, codes = self.start(name, workers), []
        for kill in kills:
            codes.append(self.run(folder, **kill).code)
            if (folder / "out" / "manifest.json").exists():
                assert self.files(folder) == self.whole.files, kills
        ended = self.run(folder)
        assert ended.code == 0, (kills, ended)
        assert self.files(folder) == self.whole.files, kills
        assert drafts(folder / "out") == [], kills
        assert cli("clean", folder / "cache", "--yes").code == 0
        assert drafts(folder) == [], kills
        return codes

    def files(self, folder: Path) -> dict[str, str]:
        """The finished dataset, without drafts of a process that was killed a moment ago."""
        return {name: one for name, one in tree(folder / "out").items() if ".tmp-" not in name}


@pytest.fixture
def killing(whole: Whole, tmp_path: Path) -> Killing:
    return Killing(whole, tmp_path)


@pytest.mark.slow
def test_kills_at_puts(killing: Killing) -> None:
    """At every tenth put. The second kill meets a run that goes on, which may have less to put."""
    puts = killing.puts(1)
    assert puts > 20
    chance = random.Random(0)
    for at in range(1, puts + 1, 10):
        first = {"at": at, "when": ("before", "after")[at // 10 % 2]}
        second = {"at": chance.randrange(1, puts - at + 2), "when": "before"}
        assert killing.disturbed(f"at-{at}", first, second)[0] == -signal.SIGKILL


@pytest.mark.slow
def test_kills_among_several_processes(killing: Killing) -> None:
    """Of the driver alone, of the process that puts, which may be the driver, and of all."""
    puts = killing.puts(2)
    chance = random.Random(23)
    codes = {"self": [], "driver": [], "group": []}  # type: dict[str, list[int]]
    for number, whom in enumerate(("self", "driver", "group", "self")):
        kill = {"at": chance.randrange(1, puts - 2), "when": chance.choice(["before", "after"]), "whom": whom}
        codes[whom] += killing.disturbed(f"by-{number}", kill, workers=2)
    assert {*codes["driver"], *codes["group"]} == {-signal.SIGKILL}
    assert {*codes["self"]} <= {0, -signal.SIGKILL}


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_an_interruption_clears_up_and_the_next_run_goes_on(killing: Killing, number: int) -> None:
    """As a terminal or a scheduler sends it, to all processes."""
    folder = killing.start("interrupted", workers=2)
    ended = killing.run(folder, at=18, how=number)
    assert ended.code == 130, ended
    assert "Traceback" not in ended.said
    assert drafts(folder) == []
    assert not (folder / "out" / "manifest.json").exists()
    ended = killing.run(folder)
    assert ended.code == 0, ended
    assert killing.files(folder) == killing.whole.files


@pytest.mark.slow
def test_several_drivers_on_one_output_and_one_cache(whole: Whole, tmp_path: Path) -> None:
    config = saved(whole.copy(tmp_path, "user"))

    runs = [warm.Process(("run", config, *more)) for more in ((), (), ("--out", tmp_path / "other"))]
    ended = [(process.communicate(timeout=600)[1], process.returncode) for process in runs]
    assert 0 in [code for _, code in ended[:2]]
    for err, code in ended:
        assert code == 0 or (code == 2 and re.search(r"works on .*out\. Let it finish", err)), err
    for out in (tmp_path / "out", tmp_path / "other"):
        assert tree(out) == whole.files


# Rows that kill, and inputs that change

READER = """
import os, signal
from pathlib import Path

def rows(row):
    if "kill" in row["text"] and Path(__file__).with_name("deadly").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return {"text": row["text"]}
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_row_that_kills_every_worker(tmp_path: Path, workers: int) -> None:
    (tmp_path / "reader.py").write_text(READER)
    (tmp_path / "deadly").touch()
    for name in "abcd":
        rows = [{"text": f"row {number} of {name}"} for number in range(200)] + [{"text": "kill"}] * (name == "c")
        (tmp_path / f"{name}.jsonl").write_bytes(lines(rows))
    read = source("texts", format="python:reader:rows", path=[f"{name}.jsonl" for name in "abcd"])
    config = configure(tmp_path, {**read, "name": "x"}, run={"workers": workers})
    done = warm.run(("run", saved(config)))
    assert done.returncode == 1, done
    assert f"{tmp_path / 'c.jsonl'} (rows 1 to 201, bytes 0 to" in re.sub(r"\s+", " ", done.stderr)
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out" / "manifest.json").exists()
    (tmp_path / "deadly").unlink()
    assert warm.run(("run", saved(config))).returncode == 0
    packed({**config, "out": str(tmp_path / "again"), "cache": str(tmp_path / "other")}, tmp_path)
    assert tree(tmp_path / "out") == tree(tmp_path / "again")


class Changing(Heard):
    """Changes an input as soon as a stage begins."""

    def __init__(self, stage: str, path: Path, data: bytes) -> None:
        super().__init__()
        self.stage, self.path, self.data = stage, path, data

    def begin(self, stage: str, total: int, unit: str) -> None:
        if stage == self.stage:
            self.path.write_bytes(self.data)


def test_an_input_that_changes_under_a_run(whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = whole.copy(tmp_path, "user")
    monkeypatch.setenv("PACKTRAIN_CACHE", str(tmp_path / "user"))
    path = tmp_path / "texts.jsonl"
    good = path.read_bytes()

    def run(stage: str, data: bytes) -> None:
        packtrain.run(config, base=tmp_path, observer=Changing(stage, path, data))

    for wrong in (good.replace(b"mules", b"ponys"), good[:-40], b""):
        with pytest.raises(InputError, match=f"{path} changed while it was read"):
            run("encode", wrong)
        assert not (tmp_path / "out" / "manifest.json").exists()
        path.write_bytes(good)
    # Once it is encoded, the input is not needed any more.
    run("pack", b"gone")
    assert tree(tmp_path / "out") == whole.files
    with pytest.raises(PacktrainError, match="belongs to another run"):
        packed(config)


PEAK = """
import sys
from packtrain.pipeline.cli.main import main
try:
    main()
finally:
    (line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    open(sys.argv[-1] + ".peak", "w").write(line.split()[1])
"""


@pytest.mark.slow
def test_a_row_of_a_hundred_megabytes_is_rejected_in_bounded_memory(whole: Whole, tmp_path: Path) -> None:
    config = saved(whole.copy(tmp_path, "user"))
    peaks = []
    for row in (b"", b'{"text": "' + b"so it goes " * (100_000_000 // 11) + b'"}\n'):
        (tmp_path / "texts.jsonl").write_bytes((whole.folder / "texts.jsonl").read_bytes() + row)
        out = tmp_path / f"out-{len(row)}"
        command = [sys.executable, "-c", PEAK, "run", str(config), "--out", str(out)]
        subprocess.run(command, check=True, capture_output=True)
        peaks.append(int(Path(f"{out}.peak").read_text()))
    assert "row_too_long" in (out / "rejects.jsonl").read_text()
    assert peaks[1] < peaks[0] + 48 * 1024, "KiB"
