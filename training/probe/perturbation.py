"""The probe for models without gradients: changes one document, and checks whether the outputs of the others change.

Some kernels are not exact: grouped matrix multiplications of experts, for example, add in another order when other
tokens are routed. The last document measures this noise: in a causal model no earlier document can depend on it, so any
change of earlier documents is noise. A leak must be larger than that.
"""

from dataclasses import dataclass

import torch

from .documents import Call, RandomDocuments, to_device
from .outputs import logits_of, loss_of, nan_highest


@dataclass(frozen=True, slots=True)
class OutputChange:
    """Largest change of logits, or of losses if the callable returns no logits."""

    others: float
    """Change of later documents when the first one changed: a leak, or noise."""
    noise: float
    """Change of earlier documents when the last one changed."""
    own: float
    """Change of the first document's own outputs when it changed; if this is 0, the probe proves nothing."""
    threshold: float

    @property
    def apart(self) -> bool:
        """Whether the other documents changed by no more than noise."""
        return self.others <= self.threshold


def perturb(call: Call, documents: RandomDocuments, device: torch.device, dtype: torch.dtype) -> OutputChange:
    """Make forward passes without gradients, the same number on every rank."""
    last = len(documents.lengths) - 1
    before = _seen(call, documents, device, None)
    first = _seen(call, documents, device, 0)
    end = _seen(call, documents, device, last)
    later, earlier = range(1, last + 1), range(last)
    noise = _most(before, end, earlier)
    least = 1e-5 if dtype == torch.float32 or dtype == torch.float64 else 1e-3
    return OutputChange(_most(before, first, later), noise, _most(before, first, range(1)), 10 * noise + least)


def _seen(call: Call, documents: RandomDocuments, device: torch.device, changed: int | None) -> list[torch.Tensor]:
    """Return each document's logits, or its loss if there are no logits."""
    with torch.no_grad():
        batch = to_device(documents.packed(changed=changed), device)
        logits = logits_of(call(batch))
        if logits is not None:
            return [logits[0, begin:end].float().cpu() for begin, end in documents.spans]
        losses = []
        for document in range(len(documents.lengths)):
            batch = to_device(documents.packed(trained=document, changed=changed), device)
            losses.append(loss_of(call(batch), batch["labels"]).float().cpu())
        return losses


def _most(one: list[torch.Tensor], other: list[torch.Tensor], which: range) -> float:
    return max([float((one[index] - other[index]).abs().max()) for index in which], key=nan_highest)
