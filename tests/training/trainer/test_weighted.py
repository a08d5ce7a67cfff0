"""Training with loss weights: every gradient is that of the documents alone, each token times its weight, and a step is
the weighted mean over all micro-batches.
"""

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from packtrain.training import PackedLoader
from packtrain.training.attention import use_packed
from packtrain.training.trainer.loss import Forward, fuse_loss, targets

from tests.training.trainer.trainings import SGD, Settings, descend, document_losses, initial, losses, quietly, summed


def gradients(model: Any) -> list[Any]:
    found = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    return found


@pytest.mark.parametrize("kernel", ["none", "chunked"])
def test_packed_gradients_are_those_of_the_documents_alone(settings: Settings, weighted: Path, kernel: str) -> None:
    model = initial(settings())
    batches = list(islice(PackedLoader(weighted, rows_per_step=4), 2))
    total, whole = summed([one for batch in batches for one in document_losses(model, batch)])
    (total / whole).backward()
    expected = gradients(model)
    use_packed(model)
    forward = Forward(model, fused=fuse_loss(model, kernel, cuda=False))
    units = torch.tensor(sum(targets(batch).units for batch in batches))
    assert float(units) == pytest.approx(whole, rel=1e-7)
    parts = []
    for batch in batches:  # two micro-batches
        loss = forward.loss(model, batch, targets(batch), units, share=0.5)
        loss.backward()
        parts.append(loss.item())
    for mine, theirs in zip(gradients(model), expected, strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-5, atol=1e-6 * float(theirs.abs().max()) + 1e-9)
    assert sum(parts) == pytest.approx(float(total) / whole, rel=1e-6)


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
