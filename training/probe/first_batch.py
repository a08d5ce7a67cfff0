"""Compares the loss of the first real batch with the losses of its documents one by one.

The probe uses random documents of a few tokens; this check has real lengths, real tokens and all documents of a batch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from ...schemas.errors import LeakError
from ...schemas.rows import IGNORE_INDEX
from ..attention.apply import unwrap
from .documents import Batch, to_device
from .outputs import loss_of
from .probing import highest_of_ranks
from .quiet import quiet

MOST = 64


@dataclass(frozen=True, slots=True)
class FirstBatch:
    """Mean losses per trained token, over the same documents."""

    packed: float
    alone: float
    documents: int
    """Number of compared documents."""

    @property
    def relative(self) -> float:
        """Difference of the two losses, relative to that of single documents."""
        return abs(self.packed - self.alone) / max(abs(self.alone), 1e-12)

    def require(self, limit: float = 0.01) -> "FirstBatch":
        """Return this result, or raise if the losses differ.

        Raises:
            LeakError: the losses differ by more than the limit, or one is not a number.
        """
        if self.relative <= limit:
            return self
        raise LeakError(
            f"the first batch: loss {self.packed:.5f} packed, but {self.alone:.5f} for its {self.documents:,} "
            f"documents one by one, a difference of {self.relative:.2%}, where {limit:.0%} is allowed. Packed "
            "documents influence each other, or have wrong positions; run packtrain probe"
        )


def compare_first_batch(
    model: Any, batch: Mapping[str, Any], call: Callable[[Batch], Any] | None = None, most: int = MOST
) -> FirstBatch:
    """Make one pass with all documents and one for each, without gradients and dropout.

    On several ranks all must call it, because passes of sharded models are collective; ranks with fewer documents
    repeat their last one.

    Args:
        batch: a packed batch from the loader.
        call: the callable that trains; by default `model(**batch)`.
        most: maximum number of documents to compare; the labels of others do not count in the packed pass.
    """
    call = call or (lambda batch: model(**batch))
    device = next(unwrap(model).parameters()).device
    spans = _trained(batch)[:most]
    passes = highest_of_ranks(len(spans), device)
    labels = torch.full_like(batch["labels"], IGNORE_INDEX)
    for begin, end in spans:
        labels[:, begin:end] = batch["labels"][:, begin:end]
    with quiet(model), torch.no_grad():
        whole = to_device({**batch, "labels": labels}, device)
        packed = float(loss_of(call(whole), whole["labels"]))
        total, count = 0.0, 0
        for number in range(passes):
            begin, end = spans[min(number, len(spans) - 1)] if spans else (0, int(batch["cu_seq_lens_q"][1]))
            one = to_device(_cut(batch, begin, end), device)
            loss = float(loss_of(call(one), one["labels"]))
            trained = int((one["labels"][0, 1:] != IGNORE_INDEX).sum())
            if number < len(spans):
                total, count = total + loss * trained, count + trained
    return FirstBatch(packed if count else 0.0, total / max(count, 1), len(spans))


def _trained(batch: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return start and end of each document with trained labels."""
    bounds = batch["cu_seq_lens_q"].tolist()
    labels = batch["labels"][0].cpu()
    return [
        (begin, end)
        for begin, end in pairwise(bounds)
        if end - begin > 1 and bool((labels[begin + 1 : end] != IGNORE_INDEX).any())
    ]


def _cut(batch: Mapping[str, Any], begin: int, end: int) -> Batch:
    """Return one document as a separate batch."""
    bounds = torch.tensor([0, end - begin], dtype=torch.int32)
    cut = {name: batch[name][:, begin:end] for name in ("input_ids", "labels", "position_ids")}
    if "seq_idx" in batch:
        cut["seq_idx"] = torch.zeros_like(batch["seq_idx"][:, begin:end])
    longest = end - begin
    return {
        **cut,
        "cu_seq_lens_q": bounds,
        "cu_seq_lens_k": bounds,
        "max_length_q": longest,
        "max_length_k": longest,
        "use_cache": False,
    }
