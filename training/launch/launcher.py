"""What a launcher (torchrun, accelerate, Slurm) has started: whether it named all ranks, and whether it still runs."""

import ctypes
import os
import signal
from collections.abc import Mapping

from ...schemas.errors import ConfigError

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that `env://` of torch.distributed requires."""


def check_launch(environ: Mapping[str, str] = os.environ) -> None:
    """Refuse an environment in which each process would silently train by itself, or wait for ranks that never come.

    Raises:
        ConfigError: some of `VARIABLES` are set and others not, a number is none, or Slurm started several tasks
            without them.
    """
    if "RANK" not in environ and "WORLD_SIZE" not in environ:
        if (tasks := environ.get("SLURM_STEP_NUM_TASKS") or "1") != "1":
            raise ConfigError(
                f"Slurm started {tasks} tasks, but {', '.join(VARIABLES)} are not set: each task would train alone. "
                "Start one task a node and let it run torchrun or accelerate launch; `packtrain train --recipe slurm` "
                "prints a script that does"
            )
        return
    # torchrun sets the variables for one process as well.
    if environ.get("WORLD_SIZE") == "1":
        return
    shown = ", ".join(f"{name}={environ[name]}" for name in VARIABLES if environ.get(name))
    if missing := [name for name in VARIABLES if not environ.get(name)]:
        raise ConfigError(
            f"{shown}, but {', '.join(missing)} not set: start with torchrun or accelerate launch, which set all "
            "of them, or unset them to train with one process"
        )
    rank = environ["RANK"]
    size = environ["WORLD_SIZE"]
    numbers = (rank, size, environ["MASTER_PORT"])
    if not all(number.isdecimal() for number in numbers) or int(rank) >= int(size):
        raise ConfigError(
            f"{shown}: ranks count from 0 over all nodes, and WORLD_SIZE is the number of processes of all nodes "
            "together. In a Slurm script they must be expanded on each node: inside the quotes of srun's bash -c '…', "
            "not before"
        )


def end_with_launcher() -> None:
    """Have the kernel end this process when the torchrun or accelerate that started it is gone: otherwise workers of a
    killed launcher go on, hold devices and write checkpoints.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        launcher = os.getppid()
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
        if os.getppid() != launcher:  # it ended before the kernel was asked
            os.kill(os.getpid(), signal.SIGTERM)
