"""Makes random documents into a batch, by the loader's own code, so that the probe sees what training sees."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ...schemas.rows import IGNORE_INDEX
from ..batch import flatten
from ..shard import Row

Batch = dict[str, Any]
Call = Callable[[Batch], Any]
"""The callable that trains: a batch → outputs with `logits` or `loss`."""
Make = Callable[[Sequence[Row]], Batch]
"""Turns packed rows into input of the model. The loader's is `collate.flatten`."""


class RandomDocuments:
    """Documents of random tokens in one packed row.

    Args:
        config: the model's configuration, for its vocabulary.
        lengths: lengths of the documents, in tokens.
        make: turns packed rows into a batch.
    """

    def __init__(self, config: Any, lengths: Sequence[int], seed: int, make: Make = flatten) -> None:
        self._random = np.random.default_rng(seed)
        self._ids = _ordinary(config)
        self._make = make
        self.lengths = tuple(lengths)
        self.tokens = [self.draw(length) for length in lengths]
        ends = np.cumsum(self.lengths).tolist()
        self.spans = list(zip([0, *ends[:-1]], ends, strict=True))
        """Start and end of each document in the row."""

    def draw(self, length: int) -> list[int]:
        """Draw random tokens of the vocabulary."""
        return [int(one) for one in self._random.choice(self._ids, length)]

    def packed(self, trained: int | None = None, changed: int | None = None) -> Batch:
        """Return all documents in one row.

        Args:
            trained: the only document whose labels count; None for all.
            changed: the document whose tokens are replaced by others (the same ones each time).
        """
        tokens = list(self.tokens)
        if changed is not None:
            # Replace every token, so that a document that sees any of them sees a difference.
            size = len(self._ids)
            place = {int(one): index for index, one in enumerate(self._ids)}
            tokens[changed] = [int(self._ids[(place[one] + 1 + size // 3) % size]) for one in tokens[changed]]
        return self._batch(tokens, trained)

    def alone(self, document: int) -> Batch:
        """Return one document alone in a row."""
        return self._batch([self.tokens[document]], None)

    def _batch(self, tokens: Sequence[Sequence[int]], trained: int | None) -> Batch:
        ids = np.array([token for one in tokens for token in one], dtype=np.int32)
        labels = np.array(
            [
                token if place and trained in (None, number) else IGNORE_INDEX
                for number, one in enumerate(tokens)
                for place, token in enumerate(one)
            ],
            dtype=np.int32,
        )
        positions = np.array([place for one in tokens for place, _ in enumerate(one)], dtype=np.int32)
        lengths = np.array([len(one) for one in tokens], dtype=np.int32)
        return self._make([Row(ids, labels, positions, lengths)])


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Move a batch's tensors to a device. The bounds of queries and keys stay one shared tensor."""
    moved: dict[int, Any] = {}
    for value in batch.values():
        if isinstance(value, torch.Tensor) and id(value) not in moved:
            moved[id(value)] = value.to(device)
    return {name: moved.get(id(value), value) for name, value in batch.items()}


def _ordinary(config: Any) -> Any:
    """Return token ids without a special meaning to the model: no padding, image or end tokens."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    special: set[int] = set()
    for one in (config, text):
        for name, value in vars(one).items():
            if name.endswith(("_token_id", "_token_index")):
                special |= (
                    {value} if isinstance(value, int) else set(value) if isinstance(value, list | tuple) else set()
                )
    size = int(text.vocab_size)
    ids = np.array([one for one in range(min(size, 4096)) if one not in special], dtype=np.int64)
    return ids if len(ids) > 3 else np.arange(size)
