"""Checks that packed documents give the same outputs as alone. Unlike the isolation probes, this finds wrong
positions.
"""

from dataclasses import dataclass

import torch

from .documents import Batch, Call, RandomDocuments, to_device
from .outputs import logits_of, loss_of, nan_highest

THRESHOLDS = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 5e-2}
"""Largest allowed RMS of the difference, relative to the RMS of the logits. Not 0, because rounding differs in rows of
another length.
"""
CPU_FLOAT32 = 1e-5
"""Threshold on a CPU, which computes float32 in full precision: 33 tested architectures differ by at most 3e-7. Rotary
embeddings for another length change a model with random weights by as little as 3e-5.
"""
SEEN = 32
"""Maximum number of tokens per document to compare when documents are as long as in training."""


@dataclass(frozen=True, slots=True)
class OutputDifference:
    """The difference between packed and unpacked outputs of the document that differs most."""

    value: float
    """Relative difference; see `THRESHOLDS`."""
    document: int
    threshold: float

    @property
    def same(self) -> bool:
        """Whether rounding explains the difference. False for NaN."""
        return self.value <= self.threshold


def compare(
    call: Call, documents: RandomDocuments, device: torch.device, dtype: torch.dtype, *, chosen: bool = False
) -> OutputDifference:
    """Make forward passes without gradients: one packed, and one per document (two per document if there are no
    logits).

    Args:
        chosen: ask for the logits of only `SEEN` tokens per document, by `logits_to_keep` and without labels, because
        the logits of all tokens of long documents would not fit into memory.
    """
    found: list[float] = []
    places = [(_places if chosen else torch.arange)(length) for length in documents.lengths]
    with torch.no_grad():
        rows = [place + begin for place, (begin, _) in zip(places, documents.spans, strict=True)]
        whole = to_device(documents.packed(), device)
        packed = logits_of(call(_keeping(whole, torch.cat(rows)) if chosen else whole))
        if packed is not None:
            kept = packed[0].split([len(one) for one in rows]) if chosen else [packed[0, one] for one in rows]
        for number, place in enumerate(places):
            batch = to_device(documents.alone(number), device)
            outputs = call(_keeping(batch, place) if chosen else batch)
            alone = logits_of(outputs)
            if packed is not None and alone is not None:
                one, other = kept[number].double(), (alone[0] if chosen else alone[0, place]).double()
                spread = (other - other.mean(dim=-1, keepdim=True)).pow(2).mean().sqrt()
                found.append(float((one - other).pow(2).mean().sqrt() / spread.clamp_min(1e-12)))
            else:
                whole = to_device(documents.packed(trained=number), device)
                loss = loss_of(outputs, batch["labels"]).double()
                found.append(float((loss_of(call(whole), whole["labels"]).double() - loss).abs() / loss.abs()))
    worst = max(range(len(found)), key=lambda index: nan_highest(found[index]))
    exact = device.type == "cpu" and dtype == torch.float32
    return OutputDifference(found[worst], worst, CPU_FLOAT32 if exact else THRESHOLDS.get(dtype, 5e-2))


def _places(length: int) -> torch.Tensor:
    """Return the indices of the tokens to compare: all of a short document; both ends of a long one, and evenly spaced
    tokens between.
    """
    return torch.linspace(0, length - 1, min(length, SEEN)).round().long()


def _keeping(batch: Batch, places: torch.Tensor) -> Batch:
    device = batch["input_ids"].device
    return {**{name: one for name, one in batch.items() if name != "labels"}, "logits_to_keep": places.to(device)}
