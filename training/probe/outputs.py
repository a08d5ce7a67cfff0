"""Reads what a training callable returns: a loss, and logits if there are any.

A fused loss returns no logits, so everything here works with either.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from ...schemas.errors import BatchError
from ...schemas.rows import IGNORE_INDEX


def first_line(error: Exception) -> str:
    """The first line of an error's message, or the name of its class."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def nan_highest(value: float) -> float:
    """A key for `max` by which NaN is the largest number, so that it is not overlooked."""
    return float("inf") if value != value else value


def logits_of(outputs: Any) -> torch.Tensor | None:
    """Return the logits, (1, T, vocabulary), or None."""
    found = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    return found if isinstance(found, torch.Tensor) and found.ndim == 3 else None


def loss_of(outputs: Any, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of the labels that count: computed in float32 from logits if there are any, else the
    callable's own loss.

    Args:
        labels: (1, T), unshifted.

    Raises:
        BatchError: there is neither a loss nor logits.
    """
    logits = logits_of(outputs)
    if logits is not None and logits.shape[1] == labels.shape[1]:
        return functional.cross_entropy(
            logits[0, :-1].float(), labels[0, 1:].to(logits.device), ignore_index=IGNORE_INDEX
        )
    loss = outputs
    if not isinstance(outputs, torch.Tensor):
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
        if loss is None and isinstance(outputs, tuple) and outputs:
            loss = outputs[0]
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise BatchError(
            f"the callable that trains returned {type(outputs).__name__} with neither a loss nor logits; pass a "
            "callable that returns the model's outputs"
        )
    return loss.reshape(())
