"""The probe on two ranks, where every forward pass is collective."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import warm

pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.mark.slow
@pytest.mark.parametrize(("wrap", "kind"), [("ddp", "gpt_oss"), ("fsdp", "llama")])
def test_two_ranks(wrap: str, kind: str, tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone",
        str(Path(__file__).parent / "ranks.py"), wrap, kind, str(tmp_path),
    ]  # fmt: skip
    environment = {**os.environ, **warm.python(), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    reports = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for report in reports:
        failed = {check["name"] for check in report["checks"] if not check["passed"]}
        assert "isolation" in failed if kind == "gpt_oss" else not failed
        assert (kind == "gpt_oss") != any(check["name"] == "at length" for check in report["checks"])
