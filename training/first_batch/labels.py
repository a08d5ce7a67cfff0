"""Whether the labels of a batch are those of the dataset, and are shifted once."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...schemas.rows import IGNORE_INDEX
from .caller import Caller
from .documents import FoundDocument


def judge_labels(
    batch: Mapping[str, Any], caller: Caller, documents: list[FoundDocument], shape: tuple[int, int], *, complete: bool
) -> tuple[str, str]:
    """(what could not be judged, what is wrong) of the labels of a batch; empty if nothing is.

    Args:
        batch: what the model gets. Labels that were taken out of it before are looked for in the calling frames.
        shape: (B, T) of the batch.
        complete: all of it that is not padding is documents.
    """
    labels, is_shifted_later = _labels_of(batch, caller, shape)
    if labels is None:
        return "its labels could not be seen", ""
    problem = _differences(labels, documents, complete)
    if not any((document.labels[0] != IGNORE_INDEX).any() for document in documents):
        return "", problem
    if not (labels != IGNORE_INDEX).any():
        return "", "no label is trained: all are -100"
    # Labels that each stand at the token before theirs are the dataset's when they are moved back.
    is_shifted = bool(problem) and not _differences(np.roll(labels, 1, axis=1), documents, complete)
    if problem and not is_shifted:
        return "", problem
    # Each label must be shifted once: by the batch or by who computes the loss.
    match is_shifted, is_shifted_later:
        case True, True:
            return "", "labels reach the model already shifted, and the model shifts them again"
        case False, False:
            return "", f"labels are not shifted, and the loss of {caller.name} does not shift them"
        case True, None:
            return "labels could not be judged: they are shifted, which is wrong if the loss shifts them again", ""
        case False, None:
            return "its labels are computed with outside of the model, by a loss that must shift them", ""
    return "", ""


def _labels_of(
    batch: Mapping[str, Any], caller: Caller, shape: tuple[int, int]
) -> tuple[NDArray[np.int64] | None, bool | None]:
    """(B, T) labels, and whether who takes them shifts them; None for what is not known."""
    # transformers' models take `shift_labels` as they are, and shift `labels`.
    for name, shifts in (("shift_labels", False), ("labels", True)):
        labels = batch.get(name)
        if isinstance(labels, torch.Tensor) and labels.numel() == shape[0] * shape[1]:
            return labels.reshape(shape).cpu().numpy(), shifts
    taken_out = next((labels for labels in caller.labels if labels.shape == shape), None)
    return None if taken_out is None else taken_out.cpu().numpy(), False if caller.wants_shifted_labels else None


def _differences(labels: NDArray[np.int64], documents: list[FoundDocument], complete: bool) -> str:
    """How labels differ from the dataset's, in words; empty if they do not."""
    expected = np.full_like(labels, IGNORE_INDEX)
    is_inside = np.zeros(labels.shape, bool)
    for document in documents:
        is_inside[document.place] = True
        actual = labels[document.place]
        is_same = (variant for variant in document.labels if np.array_equal(variant[1:], actual[1:]))
        expected[document.place] = next(is_same, document.labels[0])
    expected[:, 0] = labels[:, 0]  # none predicts the first token of a row, so its label does not matter
    is_trained = labels != IGNORE_INDEX
    is_expected = expected != IGNORE_INDEX
    counts = (
        ((is_inside & is_trained & ~is_expected).sum(), "tokens are trained that the dataset masks"),
        ((is_expected & ~is_trained).sum(), "labels of the dataset are missing"),
        ((is_expected & is_trained & (labels != expected)).sum(), "labels are other tokens"),
        ((is_trained & ~is_inside).sum() if complete else 0, "labels are trained outside of documents"),
    )
    return "; ".join(f"{count:,} {sentence}" for count, sentence in counts if count)
