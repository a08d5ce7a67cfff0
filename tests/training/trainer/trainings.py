"""Trainings in this process, what they logged, and a plain reference for what a step should do."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from packtrain.training import PackedLoader
from packtrain.training.models.model import load_model
from packtrain.training.models.model_config import ModelConfig
from packtrain.training.trainer.train import train

Settings = Callable[..., dict[str, Any]]
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
SGD = {"optim": "sgd", "learning_rate": 0.5, "lr_scheduler_type": "constant", "max_grad_norm": 0, "weight_decay": 0.0}
"""Gradient descent, in which a wrong gradient shows as it is."""


class Outcome:
    """What came of a training."""

    def __init__(self, trainer: Any) -> None:
        self.log: list[dict[str, Any]] = trainer.state.log_history
        self.steps: int = trainer.state.global_step
        self.out, self.resumed_from = Path(trainer.args.output_dir), trainer.resumed_from
        self.export = self.out / "model"
        self.metrics: dict[str, float] = next((one for one in reversed(self.log) if "eval_loss" in one), {})


def quietly(config: dict[str, Any]) -> Outcome:
    """Train, and print nothing."""
    return Outcome(train(config, say=lambda text: None))


def losses(outcome: Outcome) -> list[float]:
    """The loss of every step that was logged."""
    return [entry["loss"] for entry in outcome.log if "loss" in entry]


def initial(config: dict[str, Any]) -> Any:
    """The model of a configuration, as its training begins."""
    return load_model(ModelConfig.model_validate(config["model"]), Path.cwd(), config["seed"])


# What a step should do, written as plainly as can be: every document alone, and one mean over all


def document_losses(model: Any, batch: dict[str, Any]) -> list[tuple[Any, float]]:
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
        found.append(((losses * weights).sum(), weights.double().sum().item()))
    return found


def summed(losses: list[tuple[Any, float]]) -> tuple[Any, float]:
    """Losses and weights over documents."""
    return sum((loss for loss, _ in losses), torch.zeros(())), sum(weight for _, weight in losses)


def descend(model: Any, data: Path, steps: int, rows_per_step: int = 4, **loader: Any) -> list[float]:
    """Plain gradient descent with the rate of `SGD`, a whole step's rows at once; changes the model, returns the
    losses.
    """
    found = []
    batches = iter(PackedLoader(data, rows_per_step=rows_per_step, seed=3, rank=0, world_size=1, **loader))
    for _ in range(steps):
        total, weight = summed(document_losses(model, next(batches)))
        loss = total / max(1e-9, weight)
        loss.backward()
        found.append(loss.item())
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= 0.5 * parameter.grad
                    parameter.grad = None
    return found
