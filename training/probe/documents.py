"""Batches for a probe: documents of random tokens, and single documents cut out of a batch."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from ...schemas.rows import IGNORE_INDEX
from .. import collate

COMPARED = 8
"""Documents of a real batch that are compared with themselves alone."""
Batch = dict[str, Any]


class RandomDocuments:
    """Documents of random tokens, packed into one row by the loader's own code.

    Args:
        config: the model's configuration, for its vocabulary.
        lengths: of the documents, in tokens.
        seq_idx: add the number of each token's document.
    """

    def __init__(
        self, config: Any, lengths: Sequence[int], seed: int, device: torch.device, *, seq_idx: bool = False
    ) -> None:
        self._ids = _ordinary(config)
        self._places = np.random.default_rng(seed).integers(len(self._ids), size=sum(lengths))
        self._lengths, self._seq_idx, self.device = np.array(lengths), seq_idx, device
        ends = np.cumsum(lengths).tolist()
        self.spans = list(zip([0, *ends[:-1]], ends, strict=True))
        """Start and end of each document in the row."""

    def packed(self, trained: int | None = None, changed: int | None = None) -> Batch:
        """All documents in one row.

        Args:
            trained: the only document whose labels count; None for all.
            changed: the document in which every token is replaced by another.
        """
        places = self._places.copy()
        if changed is not None:
            begin, end = self.spans[changed]
            places[begin:end] = (places[begin:end] + 1 + len(self._ids) // 3) % len(self._ids)
        positions = np.concatenate([np.arange(length) for length in self._lengths])
        labels = np.where(positions == 0, IGNORE_INDEX, self._ids[places])
        if trained is not None:
            begin, end = self.spans[trained]
            labels[:begin] = labels[end:] = IGNORE_INDEX
        row = {
            "input_ids": self._ids[places],
            "labels": labels,
            "position_ids": positions,
            "seq_lengths": self._lengths,
        }
        batch = collate([{name: torch.from_numpy(one) for name, one in row.items()}])
        if self._seq_idx:
            numbers = np.repeat(np.arange(len(self._lengths), dtype=np.int32), self._lengths)
            batch["seq_idx"] = torch.from_numpy(numbers)[None]
        return to_device(batch, self.device)


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Move a batch's tensors to a device. The bounds of queries and keys stay one shared tensor."""
    moved = {id(one): one.to(device) for one in batch.values() if isinstance(one, torch.Tensor)}
    return {name: moved.get(id(one), one) for name, one in batch.items()}


def cut_out(batch: Batch, begin: int, end: int) -> Batch:
    """One document of a batch, in a batch of its own."""
    cut = {name: one[:, begin:end] for name, one in batch.items() if isinstance(one, torch.Tensor) and one.ndim == 2}
    if "seq_idx" in cut:
        cut["seq_idx"] = torch.zeros_like(cut["seq_idx"])
    bounds = torch.tensor([0, end - begin], dtype=torch.int32, device=batch["input_ids"].device)
    sizes = {"max_length_q": end - begin, "max_length_k": end - begin}
    return {**cut, "cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, **sizes, "use_cache": False}


def some_documents(batch: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Start and end of the longest document of a batch and some others: always `COMPARED`, as ranks must make the same
    number of passes, so one may stand there twice.
    """
    spans = [(begin, end) for begin, end in pairwise(batch["cu_seq_lens_q"].tolist()) if end - begin > 1]
    spans = spans or [(0, batch["input_ids"].shape[1])]
    longest = max(spans, key=lambda span: span[1] - span[0])
    return [longest, *(spans[round(place)] for place in np.linspace(0, len(spans) - 1, COMPARED - 1))]


def _ordinary(config: Any) -> Any:
    """Token ids without a special meaning to the model: no padding, image or end tokens."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    special: set[int] = set()
    for name, value in [*vars(config).items(), *vars(text).items()]:
        if name.endswith(("_token_id", "_token_index")):
            special |= {one for one in (value if isinstance(value, list | tuple) else [value]) if isinstance(one, int)}
    ids = np.array([one for one in range(min(int(text.vocab_size), 4096)) if one not in special])
    return ids if len(ids) > 3 else np.arange(int(text.vocab_size))
