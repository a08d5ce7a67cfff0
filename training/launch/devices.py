"""Finds the GPUs and the attention kernels, whether they work, and which kernel training would use."""

from collections.abc import Mapping

from ...schemas.units import size
from .findings import BROKEN, GOOD, NOTE, SLOW, Finding


def devices(environ: Mapping[str, str]) -> list[Finding]:
    """Driver, each GPU, and the attention kernels. Says so where torch is missing."""
    try:
        import torch
        from torch.utils import collect_env
    except Exception as error:  # a broken build may raise anything
        said = f"unknown, because torch cannot be imported ({error.__class__.__name__}: {error})"
        return [Finding("devices", NOTE, said)]
    driver = collect_env.get_nvidia_driver_version(collect_env.run)
    found = [Finding("driver", GOOD, driver)] if driver else []
    if torch.cuda.is_available():
        return [*found, *map(_gpu, range(torch.cuda.device_count())), *_kernels("cuda")]
    built = torch.version.cuda or (f"ROCm {torch.version.hip}" if torch.version.hip else None)
    return [*found, _no_gpu(built, driver, environ), *_kernels("cpu")]


def _gpu(index: int) -> Finding:
    import torch

    subject, properties = f"cuda:{index}", torch.cuda.get_device_properties(index)
    name = f"{properties.name}, sm{properties.major}{properties.minor}"
    try:
        free, total = torch.cuda.mem_get_info(index)
    except RuntimeError as error:
        said = f"{name}: it does not answer ({str(error).splitlines()[0]})"
        fix = "nvidia-smi shows its state; another process may hold it exclusively, or it needs a reset"
        return Finding(subject, BROKEN, said, fix)
    text = f"{name}, {size(free)} of {size(total)} free"
    if properties.major < 8:
        return Finding(subject, SLOW, text, "no bf16 and no FlashAttention before sm80: expect it to be slow")
    if free < 0.9 * total:
        return Finding(subject, NOTE, f"{text}: something else is using it", "nvidia-smi says what")
    return Finding(subject, GOOD, text)


def _no_gpu(built: str | None, driver: str | None, environ: Mapping[str, str]) -> Finding:
    """Why torch sees no GPU.

    Args:
        built: CUDA or ROCm version that torch is built for.
        driver: NVIDIA driver version, if there is a driver.
    """
    if driver is None:
        why = "there is no GPU" if built is None else f"torch is built for {built}, but there is no driver"
        return Finding("devices", NOTE, f"the CPU: {why}")
    hidden = environ.get("CUDA_VISIBLE_DEVICES")
    there = f"there is a GPU (driver {driver}), but"
    if built is None:
        said = f"{there} this torch is built for the CPU alone"
        fix = "install torch's CUDA build: pip install torch, from the index that pytorch.org names"
    elif hidden is not None and hidden.strip() in ("", "-1"):
        said = f"CUDA_VISIBLE_DEVICES={hidden} hides every GPU"
        fix = "unset it, or name devices, as in CUDA_VISIBLE_DEVICES=0,1"
    else:
        said = f"{there} torch, built for {built}, cannot use it"
        fix = (
            "the driver may be older than that CUDA: nvidia-smi shows the newest it takes; or the container was "
            "started without --gpus all"
        )
    return Finding("devices", BROKEN, said, fix)


def _kernels(device: str) -> list[Finding]:
    """The attention kernel that training would use, the others, and why."""
    try:
        from ..attention.kernels import choose, survey

        chosen = choose(device)
        others = [kernel for kernel in survey(device) if kernel.name != chosen.name]
    except ImportError as error:
        return [Finding("attention", BROKEN, f"cannot be imported: {error}", "pip install 'packtrain[train]'")]
    except Exception as error:  # a kernel's package may raise anything when it is imported
        fix = "set attention: packed_block_mask, exact and slow"
        return [Finding("attention", BROKEN, f"no kernel: {error}", fix)]
    said = [f"{one.name}, {'usable' if one.usable else 'not usable'}: {one.reason}" for one in others]
    return [
        Finding("attention", GOOD, f"{chosen.name}: {chosen.reason}"),
        *(Finding("", NOTE, one) for one in said),
    ]
