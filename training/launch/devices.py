"""GPUs and what computes attention on them: found, usable, and chosen."""

import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress

from ...schemas.units import size
from .findings import Finding, broken, good, note, slow


def devices(environ: Mapping[str, str]) -> list[Finding]:
    """Driver, CUDA, NCCL, each GPU, and the attention kernels. Says so where torch is missing."""
    driver = _driver()
    try:
        import torch
    except Exception as error:  # a broken build may raise anything
        said = f"unknown, because torch cannot be imported ({error.__class__.__name__}: {error})"
        return [*_driver_finding(driver), note("devices", said)]
    built = torch.version.cuda or (f"ROCm {torch.version.hip}" if torch.version.hip else None)
    found = _driver_finding(driver)
    if not torch.cuda.is_available():
        found.append(_no_gpu(built, driver, environ))
        return [*found, *_backends(), *kernels("cpu")]
    found.append(good("CUDA", f"torch is built for {built}"))
    found.append(good("NCCL", _nccl()))
    for index in range(torch.cuda.device_count()):
        found.append(_gpu(index))
    return [*found, *_backends(), *kernels("cuda")]


def _gpu(index: int) -> Finding:
    import torch

    properties = torch.cuda.get_device_properties(index)
    name = f"{properties.name}, sm{properties.major}{properties.minor}"
    try:
        free, total = torch.cuda.mem_get_info(index)
    except RuntimeError as error:
        return broken(
            f"cuda:{index}",
            f"{name}: it does not answer ({str(error).splitlines()[0]})",
            "nvidia-smi shows its state; another process may hold it exclusively, or it needs a reset",
        )
    text = f"{name}, {size(free)} of {size(total)} free"
    if properties.major < 8:
        return slow(f"cuda:{index}", text, "no bf16 and no FlashAttention before sm80: expect it to be slow")
    if free < 0.9 * total:
        return note(f"cuda:{index}", f"{text}: something else is using it", "nvidia-smi says what")
    return good(f"cuda:{index}", text)


def _no_gpu(built: str | None, driver: str | None, environ: Mapping[str, str]) -> Finding:
    if built is None and driver:
        return broken(
            "devices",
            f"there is a GPU (driver {driver}), but this torch is built for the CPU alone",
            "install torch's CUDA build: pip install torch, from the index that pytorch.org names",
        )
    if built is not None and driver:
        hidden = environ.get("CUDA_VISIBLE_DEVICES")
        if hidden is not None and hidden.strip() in ("", "-1"):
            return broken(
                "devices",
                f"CUDA_VISIBLE_DEVICES={hidden} hides every GPU",
                "unset it, or name devices, as in CUDA_VISIBLE_DEVICES=0,1",
            )
        return broken(
            "devices",
            f"there is a GPU (driver {driver}), but torch, built for {built}, cannot use it",
            "the driver may be older than that CUDA: nvidia-smi shows the newest it takes; or the container was "
            "started without --gpus all",
        )
    if built is not None:
        return note("devices", f"the CPU: torch is built for {built}, but there is no driver")
    return note("devices", "the CPU: torch is built for it, and there is no GPU")


def kernels(device: str) -> list[Finding]:
    """What the trainer's attention would use, what else there is, and why each."""
    try:
        from ..attention.kernels import choose, survey

        chosen = choose(device)
        found = [good("attention", f"{chosen.name}: {chosen.reason}")]
        for kernel in survey(device):
            if kernel.name != chosen.name:
                state = "usable" if kernel.usable else "not usable"
                found.append(note("", f"{kernel.name}, {state}: {kernel.reason}"))
    except ImportError as error:
        return [broken("attention", f"cannot be imported: {error}", "pip install 'packtrain[train]'")]
    except Exception as error:  # a kernel's package may raise anything when it is imported
        return [broken("attention", f"no kernel: {error}", "set attention: packed_block_mask, exact and slow")]
    return found


def _backends() -> list[Finding]:
    import torch.distributed as dist

    if not dist.is_available():
        return [broken("distributed", "this torch is built without torch.distributed", "install another build")]
    names = [name for name, there in (("gloo", dist.is_gloo_available()), ("nccl", dist.is_nccl_available())) if there]
    return [good("distributed", ", ".join(names))]


def _nccl() -> str:
    import torch

    with suppress(Exception):
        return ".".join(map(str, torch.cuda.nccl.version()))
    return "version unknown"


def _driver() -> str | None:
    """The NVIDIA driver's version, asked of the driver's own tool; None without one."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    command = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.split()
    return lines[0] if done.returncode == 0 and lines else None


def _driver_finding(driver: str | None) -> list[Finding]:
    return [good("driver", driver)] if driver else []
