"""Proves that documents packed into one row do not see each other, on the same model and callable that train.

1. **Documents** (`documents`): random tokens, which the loader's own code makes into a batch.
2. **Quiet** (`quiet`): switches off the model's dropout, and restores the model exactly afterwards.
3. **Checks**: static (`static`); the exact gradient probe (`gradient`), or by perturbation (`perturbation`);
   each document compared with itself alone (`equivalence`).
4. **Diagnosis** (`diagnosis`): finds the single setting that causes a leak.
5. **Report** (`report`): a table, and `require()`, which raises.

During training, `guard.StepGuard` checks every step, and `first_batch.compare_first_batch` the first real batch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .first_batch import FirstBatch, compare_first_batch
    from .guard import StepGuard
    from .probing import probe
    from .report import Check, ProbeReport

__all__ = ["Check", "FirstBatch", "ProbeReport", "StepGuard", "compare_first_batch", "probe"]

_HOMES = {
    "Check": "report",
    "FirstBatch": "first_batch",
    "ProbeReport": "report",
    "StepGuard": "guard",
    "compare_first_batch": "first_batch",
    "probe": "probing",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
