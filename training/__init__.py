"""From packed shards to batches of a trainer. Needs pyarrow, numpy, torch and pydantic, nothing else."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dataset import PackedDataset, collate
    from .loader import PackedLoader

__all__ = ["PackedDataset", "PackedLoader", "collate"]

_HOMES = {"PackedDataset": "dataset", "collate": "dataset", "PackedLoader": "loader"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
