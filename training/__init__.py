"""Turns packed shards into batches for a trainer. Needs only pyarrow, numpy, torch, pydantic, msgspec and blake3."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .attention.isolation_probe import probe as probe
    from .attention.packed_attention import use_packed as use_packed
    from .batch import collate as collate
    from .context_parts import cp_part as cp_part
    from .first_batch.guard import PackedGuard as PackedGuard
    from .first_batch.guard import guard as guard
    from .foreign.packed_dataset import PackedDataset as PackedDataset
    from .loader import PackedLoader as PackedLoader
    from .preference.losses import document_logps as document_logps
    from .preference.losses import predicting_positions as predicting_positions
    from .preference.losses import preference_loss as preference_loss
    from .preference.reference_pass import reference_logps as reference_logps
    from .stream import PackedStream as PackedStream
    from .trainer.train import train as train
    from .trainer.trainer import PackedTrainer as PackedTrainer

_HOMES = {
    "PackedGuard": ".first_batch.guard",
    "PackedDataset": ".foreign.packed_dataset",
    "PackedLoader": ".loader",
    "PackedStream": ".stream",
    "PackedTrainer": ".trainer.trainer",
    "collate": ".batch",
    "cp_part": ".context_parts",
    "document_logps": ".preference.losses",
    "guard": ".first_batch.guard",
    "predicting_positions": ".preference.losses",
    "preference_loss": ".preference.losses",
    "probe": ".attention.isolation_probe",
    "reference_logps": ".preference.reference_pass",
    "train": ".trainer.train",
    "use_packed": ".attention.packed_attention",
}
"""Public name → the module that has it, which is imported only when somebody asks for the name."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
