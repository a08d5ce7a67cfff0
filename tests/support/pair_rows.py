"""Rows of preference pairs, made from pairs that are known, and what a trainer without packing makes of those."""

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from packtrain.schemas.dataset.row_batch import Row
from packtrain.training.batch import FixedShape, flatten

MASKED = -100


class Pair(NamedTuple):
    """A pair as token ids."""

    prompt: list[int]
    chosen: list[int]
    rejected: list[int]


class PaddedHalf(NamedTuple):
    """One side of several pairs, a document a row, padded on the right."""

    input_ids: torch.Tensor
    """int64 (P, L)"""
    is_token: torch.Tensor
    """bool (P, L): no padding."""
    is_completion: torch.Tensor
    """bool (P, L)"""


def random_pairs(count: int, seed: int = 0, *, vocabulary: int = 500, longest: int = 19) -> list[Pair]:
    """Pairs whose prompts and completions differ much in length; one has no common word of its completions' beginning,
    another begins both alike.
    """
    chance = random.Random(seed)

    def text(shortest: int) -> list[int]:
        return [chance.randrange(5, vocabulary) for _ in range(chance.randint(shortest, longest))]

    pairs = [Pair(text(2), text(1), text(1)) for _ in range(count)]
    return [
        pair._replace(rejected=[pair.chosen[0], *pair.rejected]) if number % 3 == 1 else pair
        for number, pair in enumerate(pairs)
    ]


def pair_row(pairs: Sequence[Pair], *, shares: bool = False) -> Row:
    """A packed row of pairs.

    Args:
        shares: store each prompt once. The rejected document then begins with the prompt's last token, repeated.
    """
    tokens: list[int] = []
    labels: list[int] = []
    positions: list[int] = []
    lengths: list[int] = []
    parents: list[int] = []
    for prompt, chosen, rejected in pairs:
        for completion in (chosen, rejected):
            first = len(prompt) - 1 if shares and completion is rejected else 0
            piece = [*prompt[first:], *completion]
            tokens += piece
            labels += [MASKED] * (len(prompt) - first) + completion
            positions += range(first, first + len(piece))
            lengths.append(len(piece))
            parents.append(1 if first else 0)
    return Row(
        np.array(tokens, np.int32),
        np.array(labels, np.int32),
        np.array(positions, np.int32),
        np.array(lengths, np.int32),
        doc_ids=np.repeat(np.arange(len(pairs)), 2),
        parents=np.array(parents, np.int32) if shares else None,
        sides=np.tile(np.array([0, 1], np.int8), len(pairs)),
    )


def pair_batch(
    rows: Sequence[Sequence[Pair]], *, shares: bool = False, shape: FixedShape | None = None
) -> tuple[dict[str, Any], torch.Tensor]:
    """A batch of rows of pairs, and its sides int8 (D,), -1 for documents of padding."""
    batch = flatten([pair_row(pairs, shares=shares) for pairs in rows], shape=shape)
    return batch, batch.pop("sides")


def padded(pairs: Sequence[Pair], pad_id: int = 0) -> tuple[PaddedHalf, PaddedHalf]:
    """The chosen and the rejected documents as other trainers make them."""
    length = max(len(prompt) + max(len(chosen), len(rejected)) for prompt, chosen, rejected in pairs)
    halves = []
    for side in (1, 2):
        ids = torch.full((len(pairs), length), pad_id)
        is_completion = torch.zeros_like(ids, dtype=torch.bool)
        is_token = torch.zeros_like(is_completion)
        for number, pair in enumerate(pairs):
            document = [*pair.prompt, *pair[side]]
            ids[number, : len(document)] = torch.tensor(document)
            is_token[number, : len(document)] = True
            is_completion[number, len(pair.prompt) : len(document)] = True
        halves.append(PaddedHalf(ids, is_token, is_completion))
    return halves[0], halves[1]
