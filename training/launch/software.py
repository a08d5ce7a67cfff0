"""Versions of what training needs, and whether they fit each other. Asks the installed metadata; imports only torch."""

import platform
import re
import sys
from collections.abc import Callable, Mapping
from importlib import metadata

from .findings import Finding, broken, good, note

LEAST = {"torch": (2, 10), "transformers": (4, 53), "accelerate": (1, 0)}
"""What the trainer needs, and the oldest version that it works with."""
EXTRAS = {
    "flash-attn": "torch brings its own variable-length FlashAttention; the package is used where it is installed",
    "triton": "torch.compile and Liger's kernels need it on a GPU; it comes with torch's CUDA builds",
    "liger-kernel": "fused kernels on a GPU: pip install liger-kernel",
    "peft": "low-rank adapters: pip install peft",
    "bitsandbytes": "8-bit optimizers and quantised models: pip install bitsandbytes",
    "deepspeed": "ZeRO-3: pip install deepspeed",
    "tensorboard": "curves: pip install tensorboard",
}
"""What else is used where it is there, and what for."""

Version = Callable[[str], str | None]


def installed(package: str) -> str | None:
    """The version of a package; None where there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def software(version: Version = installed) -> list[Finding]:
    """Python, packtrain, and the packages that training uses."""
    found = [
        good("python", f"{platform.python_version()} at {sys.executable}"),
        good("packtrain", version("packtrain") or "not installed as a package: imported from its folder"),
    ]
    for package, least in LEAST.items():
        found.append(_needed(package, version(package), least))
    if version("torch") and not _imports("torch"):
        found.append(broken("torch", "installed, but it cannot be imported", "python -c 'import torch' says why"))
    there = {package: version(package) for package in EXTRAS}
    found.extend(good(package, number) for package, number in there.items() if number)
    found.extend(note(package, f"not installed. {EXTRAS[package]}") for package, number in there.items() if not number)
    found.extend(_clashes(there, version))
    return found


def _needed(package: str, number: str | None, least: tuple[int, ...]) -> Finding:
    text = ".".join(map(str, least))
    if number is None:
        return broken(package, "not installed: nothing can be trained", f"pip install '{package}>={text}'")
    if parsed(number) < least:
        return broken(package, f"{number} is too old", f"pip install '{package}>={text}'")
    return good(package, number)


def _clashes(there: Mapping[str, str | None], version: Version) -> list[Finding]:
    """Packages that are known to fail together."""
    found = []
    torch = version("torch")
    if there["flash-attn"] and torch and not _imports("flash_attn"):
        found.append(
            broken(
                "flash-attn",
                f"installed, but cannot be imported with torch {torch}: it was built for another",
                "pip uninstall flash-attn: torch's own kernel takes its place; or build it again for this torch",
            )
        )
    return found


def parsed(number: str) -> tuple[int, ...]:
    """(2, 13, 0) of `2.13.0+cu130`, as far as it is numbers."""
    match = re.match(r"\d+(\.\d+)*", number)
    return tuple(map(int, match[0].split("."))) if match else ()


def _imports(module: str) -> bool:
    try:
        __import__(module)
    except Exception:  # a package built for another torch raises anything; the doctor says that it does not import
        return False
    return True
