"""Environment variables that decide how training runs: those that hurt, and those that contradict each other."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .findings import Finding, Level

_OFF = ("", "0", "false", "False", "no")


@dataclass(frozen=True, slots=True)
class Rule:
    """When the value of one variable is worth a word."""

    name: str
    level: Level
    applies: Callable[[str | None, Mapping[str, str]], bool]
    """Given the value (None if unset) and the whole environment."""
    found: str
    mend: str = ""


def _on(value: str | None, _: Mapping[str, str]) -> bool:
    return value is not None and value not in _OFF


def _set(value: str | None, _: Mapping[str, str]) -> bool:
    return bool(value)


def _launched(environ: Mapping[str, str]) -> bool:
    return int(environ.get("LOCAL_WORLD_SIZE") or 1) > 1


RULES = (
    Rule(
        "CUDA_LAUNCH_BLOCKING",
        Level.SLOW,
        _on,
        "waits for each kernel: several times slower",
        "unset it when the fault it was set for is found",
    ),
    Rule(
        "TORCH_DISTRIBUTED_DEBUG",
        Level.SLOW,
        lambda value, _: value == "DETAIL",
        "checks every collective, which costs time in each step",
        "unset it, or take INFO",
    ),
    Rule(
        "TORCH_LOGS",
        Level.NOTE,
        _set,
        "torch writes logs of its own, which may be very long",
    ),
    Rule(
        "TORCHDYNAMO_DISABLE",
        Level.SLOW,
        _on,
        "torch.compile does nothing, without a word",
        "unset it if you want to compile",
    ),
    Rule(
        "PYTORCH_NO_CUDA_MEMORY_CACHING",
        Level.SLOW,
        _on,
        "every tensor asks the driver for memory",
        "unset it",
    ),
    Rule(
        "NCCL_P2P_DISABLE",
        Level.SLOW,
        _on,
        "GPUs of one machine talk through its memory instead of NVLink",
        "unset it, unless all-reduces hang without",
    ),
    Rule(
        "NCCL_SHM_DISABLE",
        Level.SLOW,
        _on,
        "processes of one machine talk over the network",
        "unset it, and give the container a larger /dev/shm",
    ),
    Rule(
        "NCCL_IB_DISABLE",
        Level.SLOW,
        _on,
        "machines talk over TCP, not InfiniBand",
        "unset it, unless there is no InfiniBand or it hangs",
    ),
    Rule(
        "NCCL_DEBUG",
        Level.NOTE,
        lambda value, _: value in ("INFO", "TRACE"),
        "NCCL writes much; fine while looking for a fault",
    ),
    Rule(
        "NCCL_SOCKET_IFNAME",
        Level.BROKEN,
        lambda value, _: not _exists(value),
        "names a network interface that this machine does not have",
        "`ip -brief address` lists them; choose the one that connects the nodes, or unset it",
    ),
    Rule(
        "GLOO_SOCKET_IFNAME",
        Level.BROKEN,
        lambda value, _: not _exists(value),
        "names a network interface that this machine does not have",
        "`ip -brief address` lists them; choose the one that connects the nodes, or unset it",
    ),
    Rule(
        "OMP_NUM_THREADS",
        Level.SLOW,
        lambda value, environ: value is None and _launched(environ),
        "unset, with several processes on this machine: each starts a thread for every core",
        "set it to the cores divided by the processes",
    ),
    Rule(
        "HF_HUB_OFFLINE",
        Level.NOTE,
        _on,
        "models and tokenizers must be folders, or in the hub's cache already",
    ),
    Rule(
        "TRANSFORMERS_OFFLINE",
        Level.NOTE,
        _on,
        "models and tokenizers must be folders, or in the hub's cache already",
    ),
    Rule(
        "PYTHONOPTIMIZE",
        Level.SLOW,
        _on,
        "asserts are left out, also those by which torch and others notice their own faults",
        "unset it",
    ),
    Rule(
        "ACCELERATE_MIXED_PRECISION",
        Level.NOTE,
        lambda value, _: value not in (None, "", "no"),
        "accelerate's configuration asks for mixed precision, beside what the trainer's configuration says",
    ),
    Rule(
        "PYTORCH_CUDA_ALLOC_CONF",
        Level.NOTE,
        _set,
        "changes how torch keeps GPU memory",
    ),
)


def variables(environ: Mapping[str, str]) -> list[Finding]:
    """A finding for each rule that applies, and one for launchers that contradict each other."""
    found = []
    for rule in RULES:
        value = environ.get(rule.name)
        if rule.applies(value, environ):
            said = f"{rule.name}={value}: {rule.found}" if value is not None else rule.found
            found.append(Finding(rule.name, rule.level, said, rule.mend))
    return [*found, *_launcher(environ)]


def _launcher(environ: Mapping[str, str]) -> list[Finding]:
    from ...schemas.errors import ConfigError
    from .environment import Launch

    try:
        launch = Launch.read(environ)
    except ConfigError as error:
        what, _, mend = str(error).partition(": ")
        return [Finding("launcher", Level.BROKEN, what, mend or "start with torchrun or accelerate launch")]
    if launch is None:
        return [Finding("launcher", Level.GOOD, "none: one process")]
    said = f"rank {launch.rank} of {launch.world_size}, to meet at {launch.master_addr}:{launch.master_port}"
    return [Finding("launcher", Level.GOOD, said)]


def _exists(value: str | None) -> bool:
    """Whether a NCCL or gloo interface list names one that is there: prefixes, `=` for exact names, `^` to exclude."""
    import socket

    if not value or value.startswith("^"):
        return True
    names = [name for _, name in socket.if_nameindex()]
    exact = value.startswith("=")
    wanted = value.removeprefix("=").split(",")
    return any(name == one if exact else name.startswith(one) for one in wanted for name in names)
