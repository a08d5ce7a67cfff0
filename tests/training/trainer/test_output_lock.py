"""One training at a time in a folder, and no worker without its launcher."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from packtrain.schemas.errors import BusyError, ConfigError
from packtrain.training.trainer.checkpoint import LOCK, locked

from tests.training.trainer.trainings import Settings, quietly

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def test_another_training_into_the_same_folder_is_refused(settings: Settings, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with locked(out), pytest.raises(BusyError, match="another training works on "):
        quietly(settings())
    assert [path.name for path in out.iterdir()] == [LOCK]
    assert quietly(settings(trainer={"max_steps": 1})).steps == 1
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written as a folder"), locked(tmp_path / "file"):
        pass


@pytest.mark.slow
def test_workers_end_when_their_launcher_is_killed(settings: Settings, tmp_path: Path) -> None:
    config = settings(rows_per_step=4, epochs=200, trainer={"max_steps": 1000, "logging_steps": 1})
    path = tmp_path / "train.yaml"
    path.write_text(yaml.safe_dump(config))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    command = [*torchrun, "-m", "packtrain.pipeline.cli", "train", str(path)]
    said = tmp_path / "said"
    with said.open("w") as file:
        launcher = subprocess.Popen(command, env=ENVIRONMENT, stdout=file, stderr=file)
    workers: list[int] = []
    try:
        for _ in range(1200):
            if " 2/1,000 " in said.read_text():
                break
            assert launcher.poll() is None, said.read_text()[-2000:]
            time.sleep(0.1)
        children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        workers = [int(child) for child in children]
        assert len(workers) == 1
        launcher.send_signal(signal.SIGKILL)
        launcher.wait()
        until = time.monotonic() + 300
        while any(_runs(pid) for pid in workers):
            assert time.monotonic() < until, "workers go on without their launcher"
            time.sleep(0.1)
        # A process counts as ended a moment before its last thread closes its files, the lock among them.
        while not _free(tmp_path / "out"):
            assert time.monotonic() < until, "the folder is still locked"
            time.sleep(0.1)
    finally:
        for pid in (launcher.pid, *workers):
            if _runs(pid):
                os.kill(pid, signal.SIGKILL)
        launcher.wait()


def _free(folder: Path) -> bool:
    try:
        with locked(folder):
            return True
    except BusyError:
        return False


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
