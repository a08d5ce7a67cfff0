"""packtrain turns conversations, prompt-completion pairs and documents into packed training shards.

The public names are handed out lazily (PEP 562): importing packtrain costs nothing and never imports torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .pipeline.dataset.wait import wait
    from .pipeline.pack_dataset import pack_dataset
    from .pipeline.run.run import run
    from .schemas.config.config import RunConfig
    from .schemas.errors import PacktrainError
    from .schemas.layout import LayoutPlan
    from .schemas.manifest import Manifest
    from .stages.pack.plan_rows import plan_rows

__version__ = "0.1.0"

__all__ = ["LayoutPlan", "Manifest", "PacktrainError", "RunConfig", "pack_dataset", "plan_rows", "run", "wait"]

_HOMES = {
    "LayoutPlan": "schemas.layout",
    "Manifest": "schemas.manifest",
    "PacktrainError": "schemas.errors",
    "RunConfig": "schemas.config.config",
    "pack_dataset": "pipeline.pack_dataset",
    "plan_rows": "stages.pack.plan_rows",
    "run": "pipeline.run.run",
    "wait": "pipeline.dataset.wait",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
