"""Tiny models and trainings on small packed data, and a plain reference for what a step should do."""

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from itertools import pairwise  # noqa: E402

from packtrain.training import PackedLoader  # noqa: E402

torch.set_num_threads(1)
LLAMA = {
    "model_type": "llama",
    "vocab_size": 3200,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
"""Some 230,000 weights, most of them in the vocabulary."""
Settings = Callable[..., dict[str, Any]]


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

    A step is two micro-batches, where the keys give no other rows.
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
            **keys,
            "trainer": {**trainer, **keys.get("trainer", {})},
        }

    return make


@pytest.fixture
def settings(settings_in: Settings, tmp_path: Path) -> Settings:
    """`settings(**keys)`: the same in the test's own folder."""
    return lambda **keys: settings_in(Path(keys.pop("out", tmp_path / "out")), **keys)


# What a step should do, written as plainly as can be: every document alone, and one mean over all


def _document_losses(model: Any, batch: dict[str, Any]) -> list[tuple[Any, float]]:
    """Each document of a packed batch by itself, with the model's own attention: the sum of its tokens' losses, each
    times its weight, and the sum of the weights.
    """
    found = []
    for begin, end in pairwise(batch["cu_seq_lens_q"].tolist()):
        labels = batch["labels"][0, begin + 1 : end]
        trained = labels != -100
        if not trained.any():
            continue
        logits = model(batch["input_ids"][:, begin:end], use_cache=False).logits[0, :-1]
        losses = torch.nn.functional.cross_entropy(logits[trained].float(), labels[trained], reduction="none")
        weights = batch["loss_weights"][0, begin + 1 : end][trained] if "loss_weights" in batch else losses * 0 + 1
        found.append(((losses * weights).sum(), float(weights.double().sum())))
    return found


def _mean(losses: list[tuple[Any, float]]) -> Any:
    """Over all tokens."""
    return sum((loss for loss, _ in losses), torch.zeros(())) / max(1e-9, sum(weight for _, weight in losses))


def _descend(
    model: Any,
    data: Path,
    steps: int,
    *,
    rows_per_step: int,
    seed: int,
    rate: float,
    **loader: Any,
) -> list[float]:
    """Plain gradient descent, a whole step's rows at once; changes the model, returns the losses."""
    losses = []
    batches = iter(PackedLoader(data, rows_per_step=rows_per_step, seed=seed, rank=0, world_size=1, **loader))
    for _ in range(steps):
        loss = _mean(_document_losses(model, next(batches)))
        loss.backward()
        losses.append(loss.item())
        with torch.no_grad():
            for weight in model.parameters():
                if weight.grad is not None:
                    weight -= rate * weight.grad
                    weight.grad = None
    return losses


@pytest.fixture(scope="session")
def document_losses() -> Callable[[Any, dict[str, Any]], list[tuple[Any, float]]]:
    """See `_document_losses`."""
    return _document_losses


@pytest.fixture(scope="session")
def descend() -> Callable[..., list[float]]:
    """See `_descend`."""
    return _descend
