"""Versions of what training needs, and packtrain's extras with what each gives. Imports torch and accelerate."""

import platform
import re
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from .findings import BROKEN, GOOD, NOTE, Finding

LEAST = {"torch": (2, 10), "transformers": (5, 17), "accelerate": (1, 0)}
"""What the trainer needs, with the oldest supported version."""
EXTRAS = {
    "fast": (("fastokens", "gigatoken"), "faster tokenizer engines, checked against `tokenizers` on every run"),
    "filter": (("polars",), "conditions over examples (`where`)"),
    "train": (("torch", "transformers", "accelerate", "tensorboard"), "`packtrain train`, with curves"),
    "lora": (("peft",), "low-rank adapters"),
    "liger": (("liger-kernel",), "Liger's fused loss on a GPU"),
    "flash": (("flash-attn",), "the flash-attn package's kernel; without it torch's own FlashAttention is used"),
    "s3": (("s3fs",), "inputs, datasets and caches in S3 and stores like it"),
    "ray": (("ray",), "runs on a Ray cluster"),
}
"""Extra of pyproject.toml → its packages, and what they provide. `all` contains all extras except `flash`."""
OTHERS = {
    "triton": "torch.compile and Liger's kernels need it on a GPU; it comes with torch's CUDA builds",
    "bitsandbytes": "8-bit optimizers and quantised models: pip install bitsandbytes",
    "deepspeed": "ZeRO-3: pip install deepspeed",
}
"""Packages outside of the extras that are used if installed."""

Version = Callable[[str], str | None]


def installed(package: str) -> str | None:
    """The version of a package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def software(version: Version = installed) -> list[Finding]:
    """Python, packtrain, what training needs, and the extras."""
    torch = version("torch")
    found = [
        Finding("python", GOOD, f"{platform.python_version()} at {sys.executable}"),
        Finding("packtrain", GOOD, version("packtrain") or "not installed as a package: imported from its folder"),
        *(_needed(package, version(package), least) for package, least in LEAST.items()),
    ]
    if torch and not _imports("torch"):
        said = "installed, but it cannot be imported"
        found.append(Finding("torch", BROKEN, said, "python -c 'import torch' says why"))
    if version("accelerate") and torch and _imports("accelerate"):
        from accelerate.commands.config.config_args import default_config_file

        if Path(default_config_file).is_file():
            said = f"{default_config_file}: `accelerate launch` without --config_file uses it"
            found.append(Finding("accelerate's configuration", NOTE, said, "`accelerate env` prints it"))
    for package, gives in OTHERS.items():
        number = version(package)
        found.append(Finding(package, GOOD if number else NOTE, number or f"not installed. {gives}"))
    for extra, (packages, gives) in EXTRAS.items():
        found.append(_extra(extra, {package: version(package) for package in packages}, gives))
    if version("flash-attn") and torch and not _imports("flash_attn"):
        said = f"installed, but cannot be imported with torch {torch}: it was built for another"
        fix = "pip uninstall flash-attn: torch's own kernel takes its place; or build it again for this torch"
        found.append(Finding("flash-attn", BROKEN, said, fix))
    return found


def _extra(name: str, numbers: dict[str, str | None], gives: str) -> Finding:
    missing = [package for package, number in numbers.items() if number is None]
    if missing:
        said = f"{', '.join(missing)} not installed: {gives}"
        return Finding(f"extra {name}", NOTE, said, f"pip install 'packtrain[{name}]'")
    there = ", ".join(f"{package} {number}" for package, number in numbers.items())
    return Finding(f"extra {name}", GOOD, f"{there}: {gives}")


def _needed(package: str, number: str | None, least: tuple[int, ...]) -> Finding:
    if number is not None and parsed(number) >= least:
        return Finding(package, GOOD, number)
    said = "not installed: nothing can be trained" if number is None else f"{number} is too old"
    return Finding(package, BROKEN, said, f"pip install '{package}>={'.'.join(map(str, least))}'")


def parsed(number: str) -> tuple[int, ...]:
    """The leading numbers of a version: (2, 13, 0) for `2.13.0+cu130`."""
    match = re.match(r"\d+(\.\d+)*", number)
    return tuple(map(int, match[0].split("."))) if match else ()


def _imports(module: str) -> bool:
    try:
        __import__(module)
    except Exception:  # a package built for another torch raises anything
        return False
    return True
