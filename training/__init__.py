"""Turns packed shards into batches for a trainer. Needs only pyarrow, numpy, torch, pydantic, msgspec and blake3."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..schemas.model_facts import ModelShape
    from .ahead import Watchdog
    from .batch import cp_part
    from .loader import PackedDataset, PackedLoader, collate
    from .order import Source
    from .steps import Balance
    from .stream import PackedStream
    from .trainer.loss import loss_units, weighted_loss
    from .trainer.run import train
    from .trainer.trainer import PackedTrainer

__all__ = [
    "Balance",
    "ModelShape",
    "PackedDataset",
    "PackedLoader",
    "PackedStream",
    "PackedTrainer",
    "Source",
    "Watchdog",
    "collate",
    "cp_part",
    "loss_units",
    "train",
    "weighted_loss",
]

_HOMES = {
    "Balance": "steps",
    "ModelShape": ".schemas.model_facts",
    "PackedDataset": "loader",
    "PackedLoader": "loader",
    "PackedStream": "stream",
    "PackedTrainer": "trainer.trainer",
    "Source": "order",
    "Watchdog": "ahead",
    "collate": "loader",
    "cp_part": "batch",
    "loss_units": "trainer.loss",
    "train": "trainer.run",
    "weighted_loss": "trainer.loss",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
