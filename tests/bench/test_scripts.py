"""Every benchmark runs at its smallest size. What it measures is not looked at: that needs an idle machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SMALL = {
    "bench_plan.py": "--rows 2000 --fill-rows 500",
    "bench_tight.py": "--only uniform --most 200",
    "bench_end_to_end.py": "--lines 12 --copies 1 --runs 1",
    "bench_memory.py": "--lines 12 --copies 1 --sizes 1",
    "bench_loader.py": "--tokens 300000 --rounds 1 --moment 0.01",
    "bench_contamination.py": "--mb 1 --rounds 1",
}
REAL = {"bench_end_to_end.py", "bench_memory.py", "bench_contamination.py"}
"""Those that cannot do without real data; the others get none here."""


def test_every_script_is_run() -> None:
    assert {path.name for path in HERE.glob("bench_*.py")} == set(SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_script(name: str, tmp_path: Path) -> None:
    if name in REAL and "PACKTRAIN_REALDATA" not in os.environ:
        pytest.skip("PACKTRAIN_REALDATA names no folder")
    environment = {key: value for key, value in os.environ.items() if name in REAL or key != "PACKTRAIN_REALDATA"}
    command = [sys.executable, str(HERE / name), *SMALL[name].split()]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "|" in done.stdout, done.stdout
