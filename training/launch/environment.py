"""What a launcher set for this process: its rank, the number of ranks, and where they meet.

torchrun and `accelerate launch` set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. A process without any of
them is alone. One with half of them, or that Slurm started many times without them, would silently train by itself:
that is refused.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ...schemas.errors import ConfigError

NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that `env://` of torch.distributed requires."""

VARIABLES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT",
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID",
    "SLURM_NODEID", "SLURM_NNODES", "CUDA_VISIBLE_DEVICES", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME",
)  # fmt: skip
"""Variables that identify a process and say how it reaches the others, in display order."""


@dataclass(frozen=True, slots=True)
class Launch:
    """This process's place among the processes of a launcher."""

    rank: int
    world_size: int
    local_rank: int
    master_addr: str
    master_port: int
    attempt: str
    """Identifies the launcher's run and restart, so that a restart is not confused with an earlier attempt."""
    hosted: bool
    """Whether the launcher itself serves the store at the master's port (torchrun does), so that rank 0 must not."""

    @property
    def place(self) -> str:
        """Address and port where the ranks meet."""
        return f"{self.master_addr}:{self.master_port}"

    @property
    def keeper(self) -> str:
        """Description of the process that serves the store."""
        return "the launcher of the first node" if self.hosted else "rank 0"

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> "Launch | None":
        """From the environment; None for a process alone.

        Raises:
            ConfigError: half of the variables are set, one is not a number, or Slurm started several tasks
                without them.
        """
        environ = os.environ if environ is None else environ
        tasks = environ.get("SLURM_STEP_NUM_TASKS") or "1"
        if "RANK" not in environ and "WORLD_SIZE" not in environ:
            if tasks != "1":
                raise ConfigError(
                    f"Slurm started {tasks} tasks, but {', '.join(NEEDED)} are not set: each task would train alone. "
                    "Start one task a node and let it run torchrun or accelerate launch; `packtrain launch "
                    "slurm-nodes` prints a script that does"
                )
            return None
        if environ.get("WORLD_SIZE") == "1":
            return None
        there = {name: environ[name] for name in (*NEEDED, "LOCAL_RANK") if environ.get(name)}
        said = listed(there)
        missing = [name for name in NEEDED if name not in there]
        if missing:
            raise ConfigError(
                f"{said}, but {', '.join(missing)} not set: start with torchrun or accelerate launch, which set all "
                "of them, or unset them to train with one process"
            )
        try:
            rank, world_size, port, local_rank = (
                int(there.get(name, "0")) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT", "LOCAL_RANK")
            )
        except ValueError as error:
            raise ConfigError(
                f"{said}: {error}. In a Slurm script they must be expanded on each node: inside the quotes of srun's "
                "bash -c '…', not before"
            ) from None
        if not 0 <= rank < world_size:
            raise ConfigError(
                f"RANK={rank} with WORLD_SIZE={world_size}: ranks count from 0 over all nodes, and WORLD_SIZE is the "
                "number of processes of all nodes together (accelerate's --num_processes too), not of one"
            )
        return cls(
            rank=rank,
            world_size=world_size,
            local_rank=local_rank,
            master_addr=there["MASTER_ADDR"],
            master_port=port,
            attempt=f"{environ.get('TORCHELASTIC_RUN_ID', '')}/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}",
            hosted=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )


def launcher_variables() -> dict[str, str]:
    """The variables of `VARIABLES` that are set, with their values."""
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


def listed(variables: Mapping[str, str]) -> str:
    """`NAME=value, …`, for a message."""
    return ", ".join(f"{name}={value}" for name, value in variables.items())
