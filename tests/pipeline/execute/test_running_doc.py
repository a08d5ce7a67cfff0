"""docs/running.md, on several machines: the scripts that only a scheduler runs do what they say."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests import kit
from tests.support import warm

PAGE = (Path(__file__).parents[3] / "docs" / "running.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_array_and_the_indexed_job_run_what_they_say(tmp_path: Path) -> None:
    kit.saved(kit.configure(tmp_path, "texts"), "config.yaml")

    def shell(script: str, **environment: str) -> None:
        known = {name: text for name, text in os.environ.items() if re.match("PACKTRAIN_|PYTHONPATH$", name)}
        env = {"PATH": f"{warm.PROGRAM.parent}:/usr/bin:/bin", **warm.python(warm.PIPELINE), **known, **environment}
        command = ["bash", "-c", script]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600, check=False)
        assert (done.returncode, done.stderr) == (0, "")

    (array,) = (text for kind, text in BLOCKS if kind == "sh" and "--array" in text)
    command = array.splitlines()[-1].removeprefix("srun ").replace("run.workers=16", "run.workers=1")
    for index in ("1", "0"):
        shell(command, SLURM_ARRAY_TASK_ID=index, SLURM_ARRAY_TASK_COUNT="2")
    (job,) = re.findall(r"'(exec packtrain run .*?)'", PAGE)
    assert "Indexed Job of 16 completions" in PAGE
    assert '/16"' in job
    script = job.replace("/etc/packtrain/", "")
    shell(script, JOB_COMPLETION_INDEX="15")
