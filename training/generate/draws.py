"""How a token is drawn: from the model's scores, and numbers that belong to one sample and step alone.

A sample's numbers come from a counter (SplitMix64 of its seed and the step, then murmur3's finaliser for each token of
the vocabulary), not from a generator that all sequences of a batch share. So an answer does not depend on its batch, on
the order of batches or on an interruption.

The token is the winner of a race: each token gets an exponentially distributed time, divided by its probability, and
the shortest wins, which is exact sampling (the Gumbel-max trick). What remains is rounding: a matrix product may round
differently in a batch of another shape. In a race that matters only if the two fastest are that close, which is much
rarer than a border of a cumulative sum that moves.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from ...schemas.samples import SampleSettings
from ...schemas.splitmix import GOLDEN, mix

_FIRST, _SECOND = -2048144789, -1028477387
"""0x85ebca6b and 0xc2b2ae35, as signed numbers of 32 bits: the multipliers of murmur3's finaliser (Appleby, 2011)."""
_BITS = 31


def draw_numbers(seeds: Sequence[int], steps: Sequence[int]) -> NDArray[np.int32]:
    """(B,) the number of each sequence at its step, which counts its new tokens from 0."""
    with np.errstate(over="ignore"):
        counter = np.array(seeds, np.uint64) + GOLDEN * (np.array(steps, np.uint64) + np.uint64(1))
    return (mix(counter) >> np.uint64(32)).astype(np.uint32).view(np.int32)


def choose(scores: torch.Tensor, numbers: torch.Tensor, settings: SampleSettings) -> torch.Tensor:
    """(B,) the tokens drawn.

    Args:
        scores: (B, V) the model's logits.
        numbers: (B,) int32, of `draw_numbers`; not looked at with temperature 0.
    """
    if settings.temperature == 0:
        return scores.argmax(-1)
    logits = scores.float() / settings.temperature
    if settings.top_p < 1:
        ordered, order = logits.sort(stable=True, dim=-1, descending=True)
        shares = torch.softmax(ordered, -1)
        outside = shares.cumsum(-1) - shares >= settings.top_p  # what comes before it is enough already
        logits = logits.masked_fill(torch.zeros_like(outside).scatter(-1, order, outside), -torch.inf)
    return logits.sub_(_times(numbers, scores.shape[-1]).log_()).argmax(-1)


def _times(numbers: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """(B, V) exponentially distributed times, from 31 bits each."""
    x = numbers[:, None] ^ vocabulary_keys(vocabulary, str(numbers.device))
    # In place, because making tensors of this size takes longer. Shifts are of signed numbers: the sign is masked away.
    x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF)).mul_(_FIRST)
    x.bitwise_xor_((x >> 13).bitwise_and_(0x7FFFF)).mul_(_SECOND)
    x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF)).bitwise_and_(0x7FFFFFFF)
    # −log(1 − share): short times keep all their digits this way, and they decide about improbable tokens.
    share = x.float().add_(0.5).mul_(2.0**-_BITS).clamp_(max=1 - 2.0**-24)
    return share.neg_().log1p_().neg_()


@lru_cache(maxsize=4)
def vocabulary_keys(vocabulary: int, device: str) -> torch.Tensor:
    """(V,) a fixed random number of 32 bits for each token."""
    with np.errstate(over="ignore"):
        keys = mix(np.arange(1, vocabulary + 1, dtype=np.uint64) * GOLDEN)
    return torch.from_numpy((keys >> np.uint64(32)).astype(np.uint32).view(np.int32)).to(device)
