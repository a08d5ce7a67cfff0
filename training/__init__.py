"""Turns packed shards into batches for a trainer. Needs only pyarrow, numpy, torch and pydantic."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..schemas.flops import ModelShape
    from .loader.iterable import PackedIterable
    from .loader.loader import PackedLoader
    from .loader.packed_stream import PackedStream
    from .loader.torch_dataset import PackedDataset, collate
    from .loader.watchdog import Watchdog
    from .order.balance import Balance
    from .order.mixture import Source
    from .trainer.loss import loss_units, weighted_loss
    from .trainer.run import train
    from .trainer.trainer import PackedTrainer

__all__ = [
    "Balance",
    "ModelShape",
    "PackedDataset",
    "PackedIterable",
    "PackedLoader",
    "PackedStream",
    "PackedTrainer",
    "Source",
    "Watchdog",
    "collate",
    "loss_units",
    "train",
    "weighted_loss",
]

_HOMES = {
    "Balance": "order.balance",
    "ModelShape": ".schemas.flops",
    "PackedDataset": "loader.torch_dataset",
    "PackedIterable": "loader.iterable",
    "PackedLoader": "loader.loader",
    "PackedStream": "loader.packed_stream",
    "PackedTrainer": "trainer.trainer",
    "Source": "order.mixture",
    "Watchdog": "loader.watchdog",
    "collate": "loader.torch_dataset",
    "loss_units": "trainer.loss",
    "train": "trainer.run",
    "weighted_loss": "trainer.loss",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
