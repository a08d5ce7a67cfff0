"""`packtrain eval-apps`: what it prints, its options, and a person who interrupts it."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support import warm
from tests.support.problems import add_problems, sample_rows, write_samples

Command = Callable[..., Any]
LINE = ("eval-apps", "samples.jsonl", "--data", "test.jsonl", "-o", "results")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data and samples, as the working directory."""
    add_problems(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_table_says_what_was_found(packtrain: Command, here: Path) -> None:
    done = packtrain("eval-apps", "--references", "--data", "test.jsonl", "-o", "references")
    assert done.code == 0, done.err
    done = packtrain(*LINE, "-k", "1,2", "--calibration", "references")
    assert done.code == 0, done.err
    for words in ("31.2 % (", "calibrated", "verdicts: ", "passed 5", "no reference passes in 1 problems, of rows 3"):
        assert words in done.out, done.out
    again = packtrain(*LINE, "--json", "--compare", "results")
    said = json.loads(again.out)
    assert said["scores"]["all"]["pass@1"]["value"] == 0.3125
    assert said["scores"]["all"]["compared"]["pass@1"]["value"] == 0


def test_without_a_sandbox_only_if_that_is_typed(packtrain: Command, here: Path) -> None:
    write_samples(here / "samples.jsonl", sample_rows()[:1])
    done = packtrain(*LINE, "--unsafe")
    assert (done.code, "programs run WITHOUT a sandbox" in done.out) == (0, True)


@pytest.mark.slow
def test_an_interruption_ends_every_program(here: Path) -> None:
    rows = [one | {"text": f"```python\nwhile True: pass\n# {at}\n```"} for at, one in enumerate(sample_rows())]
    write_samples(here / "samples.jsonl", rows)
    process = warm.Process([*LINE, "--timeout", "1000s", "--jobs", 2], cwd=here)
    me = psutil.Process(process.pid)
    end = time.monotonic() + 300
    while len(me.children(recursive=True)) < 4:
        assert time.monotonic() < end
        time.sleep(0.05)
    children = me.children(recursive=True)
    me.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    assert process.returncode == 130
    _, alive = psutil.wait_procs(children, timeout=300)  # the kernel ends what is inside of a sandbox
    assert not alive
