"""Datasets to export: every way to lay out rows, from one small corpus."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.run.run import run

SHAPES: dict[str, dict[str, Any]] = {
    "bfd": {},
    "wrapped": {"pack": {"strategy": "wrapped"}},
    "bfd_split": {"pack": {"strategy": "bfd_split"}, "truncate": {"max_length": 48}},
    "small shards": {"output": {"shard_bytes": "64KiB"}},
    "parallel": {"pack": {"parallel": {"cp": 2, "tp": 2}}},
}

ALONE = {"pack": {"strategy": "none"}, "output": {"shard_bytes": "64KiB"}, "holdout": {"fraction": 0}}
"""A document a row, in some shards of one split."""


@pytest.fixture(scope="session")
def made(little: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a dataset, by the name of its shape; not to be changed."""
    folder = tmp_path_factory.mktemp("to-export")
    little.copy(folder, out=False)
    config = json.loads((folder / "run.yaml").read_text())

    def make(shape: str) -> Path:
        out = folder / shape
        if not out.exists():
            run(config | {**SHAPES, "alone": ALONE}[shape] | {"out": shape}, base=folder)
        return out

    return make
