"""The page about training names what there is. What it shows is run with the other pages."""

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

PAGE = (Path(__file__).parents[3] / "docs" / "training.md").read_text(encoding="utf-8")
KEYS = set(re.findall(r"^\| (`[^|]*`) \|", PAGE, re.MULTILINE))


def test_the_table_names_every_key() -> None:
    from packtrain.training.trainer.config import TrainConfig

    named = {name for cell in KEYS for name in re.findall(r"`(\w+)`", cell)}
    in_the_example = {"out", "rows_per_step", "rows_per_device", "epochs"}
    assert named | in_the_example == set(TrainConfig.model_fields)
