"""What a launcher set for this process: its rank, the number of ranks, and where they meet.

torchrun and `accelerate launch` set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. A process without any of
them is alone. One with half of them, or that Slurm started many times without them, would silently train by itself:
that is refused.
"""

import os
import socket
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TypeVar

from ...schemas.errors import ConfigError

NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that `env://` of torch.distributed requires."""

VARIABLES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT",
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED",
    "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
    "SLURM_NODEID", "SLURM_NNODES", "SLURMD_NODENAME", "CUDA_VISIBLE_DEVICES", "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME", "NCCL_IB_DISABLE", "NCCL_IB_HCA", "NCCL_P2P_DISABLE",
)  # fmt: skip
"""Variables that identify a process and say how it reaches the others, in display order."""

_OWN = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID")
"""Variables that are expected to differ between ranks."""


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
        if "RANK" not in environ and "WORLD_SIZE" not in environ:
            _refuse_slurm(environ)
            return None
        if environ.get("WORLD_SIZE") == "1":
            return None
        missing = [name for name in NEEDED if not environ.get(name)]
        if missing:
            there = [name for name in NEEDED if environ.get(name)]
            raise ConfigError(
                f"{', '.join(there)} {'is' if len(there) == 1 else 'are'} set, but {', '.join(missing)} "
                f"{'is' if len(missing) == 1 else 'are'} not: start with torchrun or accelerate launch, which set all "
                "of them, or unset them to train with one process"
            )
        rank, world_size = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
        if not 0 <= rank < world_size:
            raise ConfigError(
                f"RANK={rank} with WORLD_SIZE={world_size}: ranks count from 0 over all nodes, and WORLD_SIZE is the "
                "number of processes of all nodes together (accelerate's --num_processes too), not of one"
            )
        return cls(
            rank=rank,
            world_size=world_size,
            local_rank=_number(environ, "LOCAL_RANK", 0),
            master_addr=environ["MASTER_ADDR"],
            master_port=_number(environ, "MASTER_PORT"),
            attempt=f"{environ.get('TORCHELASTIC_RUN_ID', '')}/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}",
            hosted=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )


def launcher_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of `VARIABLES` that are set, with their values."""
    environ = os.environ if environ is None else environ
    return {name: environ[name] for name in VARIABLES if name in environ}


def listed(variables: Mapping[str, str]) -> str:
    """`NAME=value, …`, for a message."""
    return ", ".join(f"{name}={value}" for name, value in variables.items()) or "none of the launcher's variables"


Value = TypeVar("Value")


def ranks_by(values: Mapping[int, Value]) -> dict[Value, list[int]]:
    """Each value, with the ranks that have it."""
    ranks_of: dict[Value, list[int]] = defaultdict(list)
    for rank, value in values.items():
        ranks_of[value].append(rank)
    return ranks_of


def compared(ranks: Mapping[int, Mapping[str, str]]) -> str:
    """The variables of several ranks, without `_OWN`. A value that differs is shown with its ranks."""
    parts = []
    for name in VARIABLES:
        ranks_of = ranks_by({rank: seen.get(name) for rank, seen in ranks.items()})
        if name in _OWN or set(ranks_of) == {None}:
            continue
        for value, those in ranks_of.items():
            said = f"{name} unset" if value is None else f"{name}={value}"
            parts.append(said if len(ranks_of) == 1 else f"{said} ({named(those)})")
    return ", ".join(parts) or "none of the launcher's variables"


def named(ranks: Sequence[int]) -> str:
    """`rank 3`, or `ranks 0-2, 5`."""
    spans = []
    for _, group in groupby(enumerate(sorted(ranks)), key=lambda pair: pair[1] - pair[0]):
        numbers = [number for _, number in group]
        spans.append(f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else str(numbers[0]))
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(spans)}"


def machine() -> str:
    """An id of this machine that differs even between containers with the same host name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()}/{boot}"


def route(address: str, port: int) -> tuple[str, str]:
    """This machine's own address and network interface on the way to another; "" where there is no way.

    Nothing is sent: connecting a datagram socket only asks the kernel for its route.
    """
    try:
        family, _, _, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            own = str(probe.getsockname()[0])
    except OSError:
        return "", ""
    import psutil

    names = [name for name, addresses in psutil.net_if_addrs().items() if any(one.address == own for one in addresses)]
    return own, names[0] if names else ""


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError:
        raise ConfigError(
            f"{name}={text!r} is not a number. In a Slurm script it must be expanded on each node: inside the "
            "quotes of srun's bash -c '…', not before"
        ) from None


def _refuse_slurm(environ: Mapping[str, str]) -> None:
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "1")
    if tasks not in ("", "1"):
        raise ConfigError(
            f"Slurm started {tasks} tasks, but RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are not set: each task "
            "would train alone. Start one task a node and let it run torchrun or accelerate launch; "
            "`packtrain launch slurm-nodes` prints a script that does"
        )
