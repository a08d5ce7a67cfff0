"""What `packtrain sample` and `packtrain export-model` need of this package: a model's place, and an engine for it."""

from typing import Literal, TypeAlias, cast, get_args

from ...schemas.errors import ConfigError
from ...schemas.samples import SampleEngine, SampleSettings
from .model_place import ModelPlace, find_model, is_sharded

__all__ = ["EngineName", "ModelPlace", "check_device", "find_model", "is_sharded", "open_engine", "resolve_engine"]

EngineName: TypeAlias = Literal["batches", "continuous", "vllm"]
_SEQUENCES = {"cpu": 16, "cuda": 64}
"""Sequences at once, where no number is given."""


def check_device(device: str | None) -> None:
    """Refuse a device that is not here.

    Args:
        device: `cpu`, `cuda`, `cuda:1`; None for any.

    Raises:
        ConfigError: as said.
    """
    import torch

    if device is None:
        return
    try:
        index = torch.device(device).index
    except RuntimeError:
        raise ConfigError(f"--device {device}: choose one of cpu, cuda, such as cuda:0") from None
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"--device {device}: torch finds no CUDA here; leave it out, or give cpu")
    if device.startswith("cuda") and (index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"--device {device}: torch finds {torch.cuda.device_count()} here, from cuda:0; give one of them"
        )


def resolve_engine(name: str, batch: int | None, device: str | None, place: ModelPlace) -> tuple[EngineName, int]:
    """The engine that a name means here, and how many sequences it computes at once.

    `auto` is continuous batching on CUDA for models that it supports; else batches.

    Raises:
        ConfigError: the model does not fit the engine.
    """
    import torch

    cuda = torch.cuda.is_available() if device is None else device.startswith("cuda")
    size = batch or _SEQUENCES["cuda" if cuda else "cpu"]
    if name == "auto":
        return ("continuous" if cuda and place.pages else "batches"), size
    if name == "continuous" and not place.pages:
        raise ConfigError(
            "--engine continuous: the model has layers that transformers' continuous batching does not know; leave "
            "--engine out"
        )
    if name not in get_args(EngineName):
        raise ConfigError(f"--engine {name}: choose one of auto, batches, continuous, vllm")
    return cast(EngineName, name), size


def open_engine(
    place: ModelPlace,
    name: EngineName,
    settings: SampleSettings,
    *,
    batch: int,
    longest: int,
    dtype: str,
    device: str | None,
) -> SampleEngine:
    """Load the model, and open the engine.

    Args:
        longest: tokens of the longest prompt.

    Raises:
        ConfigError: see `load_for_generation`, `VllmEngine`.
    """
    if name == "vllm":
        from .vllm_engine import VllmEngine

        return VllmEngine(place, settings, dtype=dtype, positions=longest + settings.max_new_tokens)
    from .loading import load_for_generation

    model = load_for_generation(place, dtype=dtype, device=device)
    if name == "continuous":
        from .continuous import ContinuousEngine

        return ContinuousEngine(model, settings, batch=batch, longest=longest)
    from .batches import BatchEngine

    return BatchEngine(model, settings)
