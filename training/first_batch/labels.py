"""Whether the labels of a batch are those of the dataset."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...schemas.rows import IGNORE_INDEX
from .documents import FoundDocument


class LabelsVerdict(NamedTuple):
    """What the labels of a batch are."""

    problem: str
    """What is wrong with them; empty if nothing is."""
    shifted: bool
    """Each label stands at the token before it, in all documents that have labels."""
    judged: bool
    """Some document has labels."""


def judge_labels(labels: NDArray[np.int64], documents: list[FoundDocument], *, complete: bool) -> LabelsVerdict:
    """Compare (B, T) labels with the dataset's.

    Args:
        complete: all of the batch that is not padding is documents.

    The first token of a row is predicted by none, so its label does not matter.
    """
    trained = labels != IGNORE_INDEX
    has_labels = any((document.labels[0] != IGNORE_INDEX).any() for document in documents)
    if not trained.any():
        return LabelsVerdict("no label is trained: all are -100" if has_labels else "", False, has_labels)
    outside = trained.copy()  # what is left when every document took its own
    shifted = masked = missing = different = 0
    for document in documents:
        outside[document.row, document.begin : document.end] = False
        actual = labels[document.row, document.begin : document.end]
        expected = document.labels[0]
        first = 1 if document.begin == 0 else 0
        if any(np.array_equal(actual[first:], variant[first:]) for variant in document.labels):
            continue
        can_be_shifted = (expected[1:] != IGNORE_INDEX).any()
        if can_be_shifted and any(np.array_equal(actual[:-1], variant[1:]) for variant in document.labels):
            shifted += 1
            # The label of a document's first token then stands behind the document before it.
            outside[document.row, max(document.begin - 1, 0)] = False
            continue
        actual = actual[first:]
        expected = expected[first:]
        masked += int(((actual != IGNORE_INDEX) & (expected == IGNORE_INDEX)).sum())
        missing += int(((actual == IGNORE_INDEX) & (expected != IGNORE_INDEX)).sum())
        different += int(((actual != expected) & (actual != IGNORE_INDEX) & (expected != IGNORE_INDEX)).sum())
    if shifted and not (masked or missing or different):
        return LabelsVerdict("", True, True)
    counts = (
        (shifted, f"labels of {shifted} of {len(documents)} documents are shifted"),
        (masked, f"{masked:,} tokens are trained that the dataset masks"),
        (missing, f"{missing:,} labels of the dataset are missing"),
        (different, f"{different:,} labels are other tokens"),
        (complete and outside.any(), f"{outside.sum():,} labels are trained outside of documents"),
    )
    return LabelsVerdict("; ".join(sentence for count, sentence in counts if count), False, has_labels)
