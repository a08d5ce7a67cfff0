"""Trainings on short packed rows: what is loaded once, and a configuration that can be changed."""

import gc
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

from tests import kit
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
def make_pairs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`make_pairs(share)`: packed preference pairs of two sources, with held-out ones; prompts are stored once with
    `row`, twice with `none`.
    """
    root = tmp_path_factory.mktemp("pairs")
    chance = random.Random(0)
    words = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")

    def text(count: int) -> str:
        return " ".join(chance.choice(words) for _ in range(count))

    for name in ("first", "second"):
        rows = [
            {"prompt": f"{text(2 + i % 7)} ", "chosen": text(1 + i % 11), "rejected": f"{text(1 + i * i % 13)} no"}
            for i in range(90)
        ]
        kit.write(root / f"{name}.jsonl", rows)

    def make(share: str) -> Path:
        out = root / share
        if not out.exists():
            sources = [{"name": name, "format": "preference", "path": f"{name}.jsonl"} for name in ("first", "second")]
            keys = {"holdout": {"fraction": 0.3}, "truncate": {"max_length": 96}, "pack": {"share": share}}
            kit.packed(kit.configure(root, *sources, out=str(out), **keys))
        return out

    return make


@pytest.fixture(scope="session")
def pairs(make_pairs: Callable[[str], Path]) -> Path:
    """Packed preference pairs whose prompts are stored twice."""
    return make_pairs("none")


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
