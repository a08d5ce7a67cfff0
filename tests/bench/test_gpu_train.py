"""Runs the GPU benchmark on a CPU at toy size, without the packages that a training machine may lack."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("accelerate")

SCRIPT = Path(__file__).with_name("gpu_train.py")
ABSENT = ("blake3", "msgspec", "polars", "datasets", "trl", "typer", "peft")
BLOCKED = f"""
import sys, runpy
for name in {ABSENT}:
    sys.modules[name] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_lengths_are_those_of_apps() -> None:
    from tests.bench.gpu_data import draw

    lengths, trained = draw(50_000, 0, 8192)
    # Measured on 2,266 real examples: mean 780.5, 99th percentile 1,803, mean square 7.21e5, 25.0 % trained.
    assert lengths.mean() == pytest.approx(780.5, rel=0.02)
    assert np.percentile(lengths, 99) == pytest.approx(1803, rel=0.05)
    assert (lengths.astype(float) ** 2).mean() == pytest.approx(7.21e5, rel=0.05)
    assert trained.sum() / lengths.sum() == pytest.approx(0.25, abs=0.01)
    assert ((trained >= 1) & (trained < lengths) & (lengths <= 8192)).all()


@pytest.mark.slow
def test_the_toy_runs_every_part_of_it(tmp_path: Path) -> None:
    out = tmp_path / "numbers.json"
    command = [sys.executable, "-c", BLOCKED, str(SCRIPT), "--toy", "--out", str(out)]
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, env=environ, check=False)
    assert done.returncode == 0, done.stderr
    made = json.loads(out.read_text())
    results = {one["name"]: one for one in made["results"]}
    assert len(results) == 13
    cannot = {name: one["failed"] for name, one in results.items() if one["failed"]}
    assert "datasets" in cannot.pop("TRL's SFTTrainer")
    assert "needs a GPU" in cannot.pop("packed, varlen, Liger's loss")
    assert not cannot
    for one in results.values():
        if one["failed"]:
            continue
        assert one["steps"] >= 3
        assert one["tokens_per_second"] > one["trained_per_second"] > 0
        assert one["losses"][0] == pytest.approx(np.log(512), rel=0.1), one["name"]  # of random weights
        assert one["utilisation"] is None  # a CPU has no peak to compare with
    assert results["padded, random order"]["fill"] < 0.7 < results["padded, by length"]["fill"]
    assert results["packed, varlen"]["fill"] == 1
    table = done.stdout.splitlines()
    assert table[-len(results) - 1].startswith("|---")
    assert table[-1].startswith("| TRL's SFTTrainer |")
