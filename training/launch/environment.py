"""What a launcher told this process: its rank, how many there are, and where they meet.

torchrun and `accelerate launch` speak through RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. A process that
was told nothing is alone. One that was told half of it, or that Slurm started many times without these variables,
would train by itself without a word: that is refused.
"""

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from ...schemas.errors import ConfigError

NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torch.distributed's `env://` wants."""

TOLD = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT",
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED",
    "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
    "SLURM_NODEID", "SLURM_NNODES", "SLURMD_NODENAME", "CUDA_VISIBLE_DEVICES", "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME", "NCCL_IB_DISABLE", "NCCL_IB_HCA", "NCCL_P2P_DISABLE",
)  # fmt: skip
"""Variables that decide who a process is and how it reaches the others, in the order in which they are shown."""

_OWN = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID")
"""Of those, what differs from rank to rank anyway."""


@dataclass(frozen=True, slots=True)
class Launch:
    """This process among those of a launcher."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    """0 where the launcher did not say."""
    master_addr: str
    master_port: int
    attempt: str
    """Tells a restart by the launcher from what was before; also the launcher's run."""
    hosted: bool
    """Whether the launcher itself keeps the store at the master's port (torchrun), so that rank 0 must not."""

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> "Launch | None":
        """From the environment; None for a process alone.

        Raises:
            ConfigError: half of the variables are set, one is not a number, or Slurm started several tasks that were
                told nothing.
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
            local_world_size=_number(environ, "LOCAL_WORLD_SIZE", 0),
            master_addr=environ["MASTER_ADDR"],
            master_port=_number(environ, "MASTER_PORT"),
            attempt=f"{environ.get('TORCHELASTIC_RUN_ID', '')}/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}",
            hosted=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )


def told(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Those of `TOLD` that are set."""
    environ = os.environ if environ is None else environ
    return {name: environ[name] for name in TOLD if name in environ}


def shown(variables: Mapping[str, str]) -> str:
    """`NAME=value, …`, for a message."""
    return ", ".join(f"{name}={value}" for name, value in variables.items()) or "none of the launcher's variables"


def shared(ranks: Mapping[int, Mapping[str, str]]) -> str:
    """What several ranks were told, once where it is the same; ranks named where it is not. Own numbers left out."""
    parts = []
    for name in TOLD:
        values = {rank: seen.get(name) for rank, seen in ranks.items()}
        if name in _OWN or not any(value is not None for value in values.values()):
            continue
        distinct = sorted({value for value in values.values() if value is not None})
        if len(distinct) == 1 and None not in values.values():
            parts.append(f"{name}={distinct[0]}")
            continue
        for value in distinct:
            parts.append(f"{name}={value} ({named([rank for rank, its in values.items() if its == value])})")
        if None in values.values():
            parts.append(f"{name} unset ({named([rank for rank, its in values.items() if its is None])})")
    return ", ".join(parts) or "none of the launcher's variables"


def named(ranks: Sequence[int]) -> str:
    """`rank 3`, or `ranks 0-2, 5`."""
    spans = []
    for _, group in groupby(enumerate(sorted(ranks)), key=lambda pair: pair[1] - pair[0]):
        numbers = [number for _, number in group]
        spans.append(f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else str(numbers[0]))
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(spans)}"


def machine() -> str:
    """Tells machines apart that have the same host name: containers do."""
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
    return own, _interface(own)


def _interface(address: str) -> str:
    """The name of the interface that has an IPv4 address, such as `eth0`; "" where it cannot be found out."""
    import fcntl
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:  # SIOCGIFADDR
                answer = fcntl.ioctl(asking.fileno(), 0x8915, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # an interface without an address
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return "lo" if address.startswith("127.") else ""


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
