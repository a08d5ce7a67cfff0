"""Trainings on preference pairs, and what a step of one should do, written as plainly as can be: every document alone,
with the model's own attention, and one mean over the pairs of the step.
"""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from packtrain.training import PackedLoader
from packtrain.training.trainer.train_config import PreferenceConfig
from torch.nn.functional import logsigmoid

METRICS = ("rewards/accuracy", "rewards/margin", "logps/chosen", "logps/rejected")


def documents_of(data: Path, split: str = "train", **loader: Any) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
    """The documents of each step that are in pairs, whole: chosen and rejected in turn, their tokens and labels."""
    options = {"seed": 3, "rank": 0, "world_size": 1, "rows_per_step": 4, **loader}
    for batch in PackedLoader(data, split=split, unpacked=True, **options):
        lengths = batch["attention_mask"].sum(1).tolist()
        columns = zip(batch["input_ids"], batch["labels"], lengths, batch["sides"].tolist(), strict=True)
        yield [(ids[:length], labels[:length]) for ids, labels, length, side in columns if side >= 0]


def document_logp(model: Any, tokens: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The log-probability of a document's completion, and how many tokens that has."""
    log_probabilities = model(tokens[None], use_cache=False).logits[0].log_softmax(-1)
    places = [place for place in range(1, len(tokens)) if labels[place] != -100]
    return sum((log_probabilities[at - 1, labels[at]].double() for at in places), torch.zeros(())), len(places)


def pair_terms(config: PreferenceConfig, model: Any, reference: Any, pair: Any) -> tuple[torch.Tensor, list[float]]:
    """The loss of a pair, and its metrics in the order of `METRICS`; of a reward model the first two."""
    beta, gamma = config.beta, config.gamma
    if config.loss == "reward":
        # transformers' own score of a row, which is right where the row is one document.
        chosen, rejected = (model(tokens[None], use_cache=False).logits[0, 0].double() for tokens, _ in pair)
        margin = chosen - rejected
        return -logsigmoid(margin), [float(margin > 0), margin.item()]
    (log_w, size_w), (log_l, size_l) = (document_logp(model, *side) for side in pair)
    with torch.no_grad():
        ref_w, ref_l = (document_logp(reference, *side)[0] for side in pair)
    mean_w, mean_l = log_w / size_w, log_l / size_l
    if config.loss == "dpo":
        margin = beta * ((log_w - ref_w) - (log_l - ref_l))
        loss = -logsigmoid(margin)
    elif config.loss == "ipo":
        difference = (log_w - ref_w) / size_w - (log_l - ref_l) / size_l
        margin = beta * difference
        loss = (difference - 1 / (2 * beta)) ** 2
    elif config.loss == "simpo":
        margin = beta * (mean_w - mean_l)
        loss = -logsigmoid(margin - gamma)
    else:
        margin = beta * (mean_w - mean_l)
        odds = (mean_w - mean_l) - (torch.log(1 - mean_w.exp()) - torch.log(1 - mean_l.exp()))
        loss = -mean_w - beta * logsigmoid(odds)
    return loss, [float(margin > 0), margin.item(), log_w.item(), log_l.item()]


def mean_terms(
    config: PreferenceConfig, model: Any, reference: Any, documents: list[Any]
) -> tuple[torch.Tensor, list[float]]:
    """The means over the pairs of a step."""
    terms = [pair_terms(config, model, reference, pair) for pair in zip(documents[::2], documents[1::2], strict=True)]
    columns = zip(*(metrics for _, metrics in terms), strict=True)
    return sum(loss for loss, _ in terms) / len(terms), [sum(column) / len(terms) for column in columns]


def descend_pairs(
    preference: dict[str, Any], model: Any, data: Path, steps: int, **loader: Any
) -> tuple[list[float], list[list[float]]]:
    """Plain gradient descent with the rate of `SGD`; changes the model, returns the losses and metrics of each step."""
    config = PreferenceConfig.model_validate(preference)
    reference = copy.deepcopy(model)
    losses: list[float] = []
    metrics: list[list[float]] = []
    for _, documents in zip(range(steps), documents_of(data, **loader), strict=False):
        loss, step_metrics = mean_terms(config, model, reference, documents)
        model.zero_grad()
        loss.backward()
        losses.append(loss.item())
        metrics.append(step_metrics)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= 0.5 * parameter.grad
    return losses, metrics
