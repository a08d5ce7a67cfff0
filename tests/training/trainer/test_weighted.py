"""Training with loss weights: every gradient is that of the documents alone, each token times its weight, and a step is
the weighted mean over all micro-batches.
"""

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from packtrain.training import PackedLoader, weighted_loss  # noqa: E402
from packtrain.training.attention import use_packed  # noqa: E402
from packtrain.training.trainer.loss import Forward, fuse_loss, targets  # noqa: E402

from tests.training.trainer.trainings import SGD, Settings, initial, losses, quietly  # noqa: E402

Losses = Callable[..., list[tuple[Any, float]]]


def gradients(model: Any) -> list[Any]:
    found = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    return found


@pytest.mark.parametrize("kernel", ["none", "chunked"])
def test_packed_gradients_are_those_of_the_documents_alone(
    settings: Settings, weighted: Path, document_losses: Losses, kernel: str
) -> None:
    model = initial(settings())
    batches = list(islice(PackedLoader(weighted, rows_per_step=4, loss_weights=True), 2))
    total, whole = (sum(one) for one in zip(*(e for b in batches for e in document_losses(model, b)), strict=True))
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
    # The same in a loop of one's own.
    inputs = {name: value for name, value in batches[0].items() if name not in ("labels", "loss_weights")}
    with torch.no_grad():
        alone = weighted_loss(model(**inputs).logits, batches[0], units)
    assert float(alone) == pytest.approx(parts[0], rel=1e-6)


def test_a_step_is_the_weighted_mean_whatever_the_micro_batches(
    settings: Settings, weighted: Path, descend: Callable[..., list[float]]
) -> None:
    config = settings(data=str(weighted), rows_per_device=1, trainer={**SGD, "max_steps": 3})
    expected = descend(initial(config), weighted, 3, rows_per_step=4, seed=3, rate=0.5)
    assert losses(quietly(config)) == pytest.approx(expected, rel=1e-6)
    plain = {**config, "out": config["out"] + "-plain", "loader": {"loss_weights": False}}
    without = quietly(plain | {"trainer": {**config["trainer"], "max_steps": 1}})
    assert without.loss != pytest.approx(expected[0], rel=1e-3), "the weights make no difference"


def test_the_held_out_loss_is_the_weighted_mean(settings: Settings, weighted: Path, document_losses: Losses) -> None:
    trainer = {"max_steps": 1, "learning_rate": 0.0}
    config = settings(data=str(weighted), eval={"rows_per_device": 3}, trainer=trainer)
    found = quietly(config).metrics
    model = initial(config)
    held = PackedLoader(weighted, split="holdout", rows_per_step=1, loss_weights=True)
    with torch.no_grad():
        total, whole = (sum(one) for one in zip(*(e for b in held for e in document_losses(model, b)), strict=True))
    assert found["eval_loss"] == pytest.approx(float(total) / whole, rel=1e-6)
    assert found["eval_loss_chats"] != found["eval_loss_texts"]
