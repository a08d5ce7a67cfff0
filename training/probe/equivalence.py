"""Each packed document is what it would be alone. Catches wrong positions, which no isolation probe can see."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .documents import Batch, Documents, to_device
from .outputs import logits_of, loss_of

Call = Callable[[Batch], Any]

THRESHOLDS = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 5e-2}
"""Root mean square of the difference over that of the logits: a row of another length is rounded elsewhere."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Between packed and alone, of the document that differs most."""

    value: float
    """Relative; see `THRESHOLDS`."""
    document: int
    threshold: float

    @property
    def same(self) -> bool:
        """Whether it is rounding. NaN is not."""
        return self.value <= self.threshold


def compare(call: Call, documents: Documents, device: torch.device, dtype: torch.dtype) -> Difference:
    """Forward passes without gradients: one packed, and one a document (without logits, two a document)."""
    found: list[float] = []
    with torch.no_grad():
        packed = logits_of(call(to_device(documents.packed(), device)))
        for number, (begin, end) in enumerate(documents.spans):
            batch = to_device(documents.alone(number), device)
            outputs = call(batch)
            alone = logits_of(outputs)
            if packed is not None and alone is not None:
                one, other = packed[0, begin:end].double(), alone[0, : end - begin].double()
                spread = (other - other.mean(dim=-1, keepdim=True)).pow(2).mean().sqrt()
                found.append(float((one - other).pow(2).mean().sqrt() / spread.clamp_min(1e-12)))
            else:
                whole = to_device(documents.packed(trained=number), device)
                loss = loss_of(outputs, batch["labels"]).double()
                found.append(float((loss_of(call(whole), whole["labels"]).double() - loss).abs() / loss.abs()))
    worst = max(range(len(found)), key=lambda index: float("inf") if found[index] != found[index] else found[index])
    return Difference(found[worst], worst, THRESHOLDS.get(dtype, 5e-2))
