"""Whether the labels of a batch are those of the dataset, and are shifted once."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ...schemas.rows import IGNORE_INDEX
from .caller import Caller
from .documents import FoundDocument


class LabelVerdict(NamedTuple):
    """What is known of the labels of a batch; both are empty if they are right."""

    unjudged: str = ""
    """Why they could not be judged; empty if they were."""
    problem: str = ""
    """What is wrong; empty if nothing is, or nothing could be judged."""


def judge_labels(
    batch: Mapping[str, Any], caller: Caller, documents: list[FoundDocument], shape: tuple[int, int], *, complete: bool
) -> LabelVerdict:
    """Compare the labels of a batch with those of the dataset. Labels must be shifted once: in the batch already, or
    later, by what computes the loss.

    Args:
        batch: what the model gets. Labels that were taken out of it before are looked for in the calling frames.
        shape: (B, T) of the batch.
        complete: whether every token of the batch that is not padding is in one of `documents`.
    """
    labels, is_shifted_later = _labels_of(batch, caller, shape)  # the latter is None if it is not known
    if labels is None:
        return LabelVerdict(unjudged="its labels could not be seen")
    problem = _differences(labels, documents, complete)
    if not any((document.labels[0] != IGNORE_INDEX).any() for document in documents):
        return LabelVerdict(problem=problem)  # nothing is trained, so nothing says whether labels are shifted
    if not (labels != IGNORE_INDEX).any():
        return LabelVerdict(problem="no label is trained: all are -100")
    # Of the labels -100 5 6, shifted ones are 5 6 -100: moved back by one, they are the dataset's again.
    is_shifted = bool(problem) and not _differences(np.roll(labels, 1, axis=1), documents, complete)
    if problem and not is_shifted:
        return LabelVerdict(problem=problem)
    # From here on the labels are the dataset's, shifted in the batch or not.
    if is_shifted and is_shifted_later:
        return LabelVerdict(problem="labels reach the model already shifted, and the model shifts them again")
    if is_shifted and is_shifted_later is None:
        return LabelVerdict(
            unjudged="labels could not be judged: they are shifted, which is wrong if the loss shifts them again"
        )
    if not is_shifted and is_shifted_later is None:
        return LabelVerdict(
            unjudged="its labels are computed with outside of the model, by a loss that must shift them"
        )
    if not is_shifted and not is_shifted_later:
        return LabelVerdict(problem=f"labels are not shifted, and the loss of {caller.name} does not shift them")
    return LabelVerdict()


def _labels_of(
    batch: Mapping[str, Any], caller: Caller, shape: tuple[int, int]
) -> tuple[NDArray[np.int64] | None, bool | None]:
    """(B, T) labels, or None if none are seen; and whether the loss that takes them shifts them, or None if that is not
    known.
    """
    # transformers' models take `shift_labels` as they are, and shift `labels`. Labels of another shape are those of the
    # batch, too, if they are as many as its tokens: `shape` is what the guard made of the tokens.
    for name, shifts in (("shift_labels", False), ("labels", True)):
        labels = batch.get(name)
        if isinstance(labels, torch.Tensor) and labels.numel() == shape[0] * shape[1]:
            return labels.reshape(shape).cpu().numpy(), shifts
    # A loss outside of the model takes them. Some trainers are known not to shift them; of the others nothing is known.
    is_shifted_later = False if caller.wants_shifted_labels else None
    for labels in caller.labels:
        if labels.shape == shape:
            return labels.cpu().numpy(), is_shifted_later
    return None, is_shifted_later


def _differences(labels: NDArray[np.int64], documents: list[FoundDocument], complete: bool) -> str:
    """How labels (B, T) differ from the dataset's, in words; empty if they do not.

    Args:
        documents: found in the batch. Each has one or several variants of labels, because a dataset may have the same
            tokens more than once and train other parts of them, for example in sources with different masks.
        complete: whether every token that is not padding is in one of `documents`. If not, labels outside of them may
            be those of documents that were not found, and say nothing.
    """
    expected = np.full_like(labels, IGNORE_INDEX)
    is_inside = np.zeros(labels.shape, bool)
    for document in documents:
        is_inside[document.place] = True
        actual = labels[document.place]
        # The variant that the batch has is expected; if it has none of them, the first one. They are compared without
        # the first label, which may be anything at the beginning of a row.
        fitting = (variant for variant in document.labels if np.array_equal(variant[1:], actual[1:]))
        expected[document.place] = next(fitting, document.labels[0])
    expected[:, 0] = labels[:, 0]  # no token predicts the first one of a row, so its label does not matter
    is_trained = labels != IGNORE_INDEX
    is_expected = expected != IGNORE_INDEX
    counts = (
        ((is_inside & is_trained & ~is_expected).sum(), "tokens are trained that the dataset masks"),
        ((is_expected & ~is_trained).sum(), "labels of the dataset are missing"),
        ((is_expected & is_trained & (labels != expected)).sum(), "labels are other tokens"),
        ((is_trained & ~is_inside).sum() if complete else 0, "labels are trained outside of documents"),
    )
    return "; ".join(f"{count:,} {sentence}" for count, sentence in counts if count)
