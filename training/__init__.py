"""From packed shards to batches of a trainer. Needs pyarrow, numpy, torch and pydantic, nothing else."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .balance import Balance
    from .cost import ModelShape
    from .dataset import PackedDataset, collate
    from .iterable import PackedIterable
    from .loader import PackedLoader
    from .mixture import Source
    from .packed_stream import PackedStream
    from .trainer.run import train
    from .trainer.trainer import PackedTrainer
    from .watchdog import Watchdog

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
    "train",
]

_HOMES = {
    "Balance": "balance",
    "ModelShape": "cost",
    "PackedDataset": "dataset",
    "PackedIterable": "iterable",
    "PackedLoader": "loader",
    "PackedStream": "packed_stream",
    "PackedTrainer": "trainer.trainer",
    "Source": "mixture",
    "Watchdog": "watchdog",
    "collate": "dataset",
    "train": "trainer.run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
