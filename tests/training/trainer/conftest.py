"""Trainings on short packed rows: what is loaded once, and a configuration that can be changed."""

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

from tests.training.trainer.trainings import LLAMA, Settings

torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def imported() -> None:
    """Load what every training loads, and keep it out of the full collection of garbage that each ends with."""
    import packtrain.training.trainer.trainer  # noqa: F401

    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def folder(make_packed: Callable[..., Path]) -> Path:
    """Short rows, because a training costs as much as the tokens that it sees."""
    return make_packed("brief", 160, max_length=96)


@pytest.fixture(scope="session")
def settings_in(folder: Path) -> Settings:
    """`settings_in(out, **keys)`: a configuration that trains for six steps of four rows; `trainer` is merged.

    A step is two micro-batches, where the keys give no other rows. Nothing is proved, which changes no loss and takes
    as long as a few steps, unless the keys say so.
    """

    def make(out: Path, **keys: Any) -> dict[str, Any]:
        trainer = {"max_steps": 6, "logging_steps": 1, "save_strategy": "no", "learning_rate": 1e-3, "report_to": []}
        return {
            "out": str(out),
            "model": {"config": LLAMA},
            "data": str(folder),
            **({} if "rows_per_step" in keys or "rows_per_device" in keys else {"rows_per_device": 2}),
            "rows_per_step": 4,
            "seed": 3,
            "export": False,
            "probe": False,
            **keys,
            "trainer": {**trainer, **keys.get("trainer", {})},
        }

    return make


@pytest.fixture
def settings(settings_in: Settings, tmp_path: Path) -> Settings:
    """`settings(**keys)`: the same in the test's own folder."""
    return lambda **keys: settings_in(Path(keys.pop("out", tmp_path / "out")), **keys)
