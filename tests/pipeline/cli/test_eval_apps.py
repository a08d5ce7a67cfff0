"""`packtrain eval-apps` that a person interrupts."""

import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.support import warm
from tests.support.problems import add_problems, sample_rows, write_samples

LINE = ("eval-apps", "samples.jsonl", "--data", "test.jsonl", "-o", "results")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data and samples, as the working directory."""
    add_problems(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_an_interruption_ends_every_program(here: Path) -> None:
    rows = [one | {"text": f"```python\nwhile True: pass\n# {at}\n```"} for at, one in enumerate(sample_rows())]
    write_samples(here / "samples.jsonl", rows)
    process = warm.Process([*LINE, "--timeout", "1000", "--jobs", 2], cwd=here)
    me = psutil.Process(process.child)
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
