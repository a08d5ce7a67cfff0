"""packtrain turns conversations, prompt-completion pairs and documents into packed training shards.

Make a dataset: `plan` and `run`. Look at it: `open`, `report`, `inspect`, `explain`, `diff`, `contamination`. Look
after it: `wait`, `verify`, `repair`. Give it away: `export`. Each does what the command of its name does, returns what
the command prints, and prints nothing itself; `packtrain.training` has loaders and more for trainers.

The public names are handed out lazily (PEP 562): importing packtrain costs nothing and never imports torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .pipeline.dataset.dataset import Dataset
    from .pipeline.dataset.dataset import open as open
    from .pipeline.dataset.verify import verify
    from .pipeline.dataset.wait import wait
    from .pipeline.explain import explain
    from .pipeline.export.targets import export
    from .pipeline.observer import Observer
    from .pipeline.pack_dataset import pack_dataset
    from .pipeline.report.diff import diff
    from .pipeline.report.report_files import report
    from .pipeline.report.shown import inspect
    from .pipeline.run.find_contamination import contamination
    from .pipeline.run.plan import plan
    from .pipeline.run.repair import repair
    from .pipeline.run.run import run
    from .schemas.config.config import RunConfig
    from .schemas.dataset.manifest import Manifest
    from .schemas.errors import PacktrainError
    from .schemas.layout import LayoutPlan
    from .stages.pack.plan_rows import plan_rows

__version__ = "0.1.0"

# Without `open`: `from packtrain import *` must not replace Python's own.
__all__ = [
    "Dataset",
    "LayoutPlan",
    "Manifest",
    "Observer",
    "PacktrainError",
    "RunConfig",
    "contamination",
    "diff",
    "explain",
    "export",
    "inspect",
    "pack_dataset",
    "plan",
    "plan_rows",
    "repair",
    "report",
    "run",
    "verify",
    "wait",
]

_HOMES = {
    "Dataset": "pipeline.dataset.dataset",
    "LayoutPlan": "schemas.layout",
    "Manifest": "schemas.dataset.manifest",
    "Observer": "pipeline.observer",
    "PacktrainError": "schemas.errors",
    "RunConfig": "schemas.config.config",
    "contamination": "pipeline.run.find_contamination",
    "diff": "pipeline.report.diff",
    "explain": "pipeline.explain",
    "export": "pipeline.export.targets",
    "inspect": "pipeline.report.shown",
    "open": "pipeline.dataset.dataset",
    "pack_dataset": "pipeline.pack_dataset",
    "plan": "pipeline.run.plan",
    "plan_rows": "stages.pack.plan_rows",
    "repair": "pipeline.run.repair",
    "report": "pipeline.report.report_files",
    "run": "pipeline.run.run",
    "verify": "pipeline.dataset.verify",
    "wait": "pipeline.dataset.wait",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
