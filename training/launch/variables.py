"""Environment variables that make training slow, and those of the launcher that contradict each other."""

import socket
from collections.abc import Mapping

from ...schemas.errors import ConfigError
from .environment import Launch
from .findings import BROKEN, GOOD, NOTE, SLOW, Finding

_HARMLESS = ("", "0", "false", "no", "off", "info")
"""Values with which none of these slows anything down."""
SLOWS = {
    "CUDA_LAUNCH_BLOCKING": ("waits for each kernel: several times slower", "unset it after debugging"),
    "TORCH_DISTRIBUTED_DEBUG": ("checks every collective, which costs time in each step", "unset it, or take INFO"),
    "TORCHDYNAMO_DISABLE": ("torch.compile silently does nothing", "unset it if you want to compile"),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": ("every tensor asks the driver for memory", "unset it"),
    "NCCL_P2P_DISABLE": (
        "GPUs of one machine talk through its memory instead of NVLink",
        "unset it, unless all-reduces hang without",
    ),
    "NCCL_SHM_DISABLE": (
        "processes of one machine talk over the network",
        "unset it, and give the container a larger /dev/shm",
    ),
    "NCCL_IB_DISABLE": (
        "machines talk over TCP, not InfiniBand",
        "unset it, unless there is no InfiniBand or it hangs",
    ),
    "PYTHONOPTIMIZE": ("asserts are left out, also those by which torch notices its own faults", "unset it"),
}
"""Variable → what it does where it is set, and what to do."""


def variables(environ: Mapping[str, str]) -> list[Finding]:
    """A finding for each variable that hurts, and one for the launcher's variables."""
    found = [
        Finding(name, SLOW, f"{name}={environ[name]}: {does}", fix)
        for name, (does, fix) in SLOWS.items()
        if environ.get(name, "").lower() not in _HARMLESS
    ]
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        if _no_interface(environ.get(name, "")):
            said = f"{name}={environ[name]}: names a network interface that this machine does not have"
            fix = "`ip -brief address` lists them; choose the one that connects the nodes, or unset it"
            found.append(Finding(name, BROKEN, said, fix))
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if environ.get(name, "").lower() not in _HARMLESS:
            said = f"{name}={environ[name]}: models and tokenizers must be folders, or in the hub's cache already"
            found.append(Finding(name, NOTE, said))
    if "OMP_NUM_THREADS" not in environ and int(environ.get("LOCAL_WORLD_SIZE") or 1) > 1:
        said = "unset, with several processes on this machine: each starts a thread for every core"
        found.append(Finding("OMP_NUM_THREADS", SLOW, said, "set it to the cores divided by the processes"))
    try:
        launch = Launch.read(environ)
    except ConfigError as error:
        what, _, fix = str(error).partition(": ")
        return [*found, Finding("launcher", BROKEN, what, fix or "start with torchrun or accelerate launch")]
    rank = None if launch is None else f"rank {launch.rank} of {launch.world_size}, to meet at {launch.place}"
    return [*found, Finding("launcher", GOOD, rank or "none: one process")]


def _no_interface(value: str) -> bool:
    """Whether an interface list names none that is there: prefixes, `=` for exact names, `^` excludes."""
    if not value or value.startswith("^"):
        return False
    names = [name for _, name in socket.if_nameindex()]
    exact, wanted = value.startswith("="), value.removeprefix("=").split(",")
    return not any(name == one if exact else name.startswith(one) for one in wanted for name in names)
