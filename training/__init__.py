"""Turns packed shards into batches for a trainer. Needs only pyarrow, numpy, torch, pydantic, msgspec and blake3."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .batch import collate as collate
    from .batch import cp_part as cp_part
    from .loader import PackedLoader as PackedLoader
    from .stream import PackedStream as PackedStream
    from .trainer.train import train as train
    from .trainer.trainer import PackedTrainer as PackedTrainer

_HOMES = {
    "PackedLoader": ".loader",
    "PackedStream": ".stream",
    "PackedTrainer": ".trainer.trainer",
    "collate": ".batch",
    "cp_part": ".batch",
    "train": ".trainer.train",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)
