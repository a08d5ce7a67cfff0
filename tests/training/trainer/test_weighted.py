"""Training with loss weights: a step is the weighted mean over all micro-batches, of documents alone."""

from pathlib import Path

import pytest
import torch
from packtrain.training import PackedLoader

from tests.training.trainer.trainings import SGD, Settings, descend, document_losses, initial, losses, quietly, summed


def test_a_step_and_the_held_out_loss_are_weighted_means(settings: Settings, weighted: Path) -> None:
    rate_zero = {**SGD, "max_steps": 1, "learning_rate": 0.0}
    config = settings(data=str(weighted), rows_per_device=1, trainer={**SGD, "max_steps": 3})
    expected = descend(initial(config), weighted, 3)
    assert losses(quietly(config)) == pytest.approx(expected, rel=1e-6)
    held_out = {"out": config["out"] + "-held-out", "eval": {}, "rows_per_step": 3, "rows_per_device": 3}
    found = quietly({**config, **held_out, "trainer": {**config["trainer"], **rate_zero}}).metrics
    model = initial(config)
    with torch.no_grad():
        held = PackedLoader(weighted, split="holdout", rows_per_step=1)
        total, whole = summed([one for batch in held for one in document_losses(model, batch)])
    assert found["eval_loss"] == pytest.approx(float(total) / whole, rel=1e-6)
    assert found["eval_loss_chats"] != found["eval_loss_texts"]
