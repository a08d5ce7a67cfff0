"""Says what happened to every token of a document: whether it is trained, and if not, why."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...schemas.rows import IGNORE_INDEX, RunKind
from ...stages.mask.policy import Mask, supervised_runs
from ..dataset.cached_parts import EncodedDocument
from ..dataset.decode import Decoder, Piece


class TokenFate(StrEnum):
    """What happened to a token. If several pieces contain it, the best result counts."""

    TRAINED = "trained"
    MASKED = "masked"
    """The mask leaves the token out."""
    FLAGGED = "masked: the data say train: false"
    HEAD = "head of a piece"
    """The mask selects the token, but it is the first in its piece, so it cannot have a label."""
    OVERLAP = "overlap"
    """The mask selects the token, but it is repeated here, and the piece that would train it is left out."""
    CUT = "cut"
    """No packed row contains the token, although rows contain other tokens of its document."""
    DROPPED = "dropped"
    """The token's whole document is left out."""
    NOT_TRAINED = "not trained"
    """The token has no label; without the cache, the reason is unknown."""


_FATES = list(TokenFate)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Neighbouring tokens of a document to which the same happened."""

    begin: int
    """Position of the first in the document, counted from 0."""
    ids: list[int]
    kind: RunKind | None
    """Kind of their run; None without the cache."""
    turn: int
    """Index of their message, or -1."""
    fate: TokenFate
    trained: int
    """Number of pieces that train them."""
    stands: int
    """Number of pieces that contain them."""
    text: str = ""
    """Their text; "" without a tokenizer."""
    texts: tuple[str, ...] = ()
    """The text of each token."""


def stretches_of(
    count: int, pieces: Sequence[Piece], cached: EncodedDocument | None, mask: Mask, decoder: Decoder | None
) -> list[Stretch]:
    """Return the tokens of a document, without those of which nothing is known: without the cache, cut ones.

    Args:
        count: T, the document's tokens before any cut.
        pieces: what rows have of it, without padding; empty for a document that is left out.
    """
    ids, trained, stands = np.zeros((3, count), np.int64)
    heads = np.zeros(count, np.bool_)
    for piece in pieces:
        here = slice(piece.start, piece.start + len(piece.ids))
        ids[here], stands[here] = piece.ids, stands[here] + 1
        trained[here] += np.array(piece.labels) != IGNORE_INDEX
        heads[piece.start] = True
    kinds, turns = np.full((2, count), -1)
    fate = np.where(trained > 0, _code(TokenFate.TRAINED), _code(TokenFate.NOT_TRAINED))
    known = stands > 0
    if cached is not None:
        ids, known = np.array(cached.ids, np.int64), np.ones(count, np.bool_)
        kinds, turns, supervised, flagged = _of_runs(cached, mask)
        which = {
            TokenFate.TRAINED: trained > 0,
            TokenFate.DROPPED: np.full(count, not pieces),
            TokenFate.CUT: stands == 0,
            TokenFate.FLAGGED: flagged,
            TokenFate.MASKED: ~supervised,
            TokenFate.HEAD: heads,
        }
        fate = np.select(list(which.values()), [_code(one) for one in which], _code(TokenFate.OVERLAP))
    columns = np.stack([known, kinds, turns, fate, trained, stands])
    changes = np.flatnonzero((np.diff(columns) != 0).any(axis=0)) + 1
    bounds = [0, *changes.tolist(), count] if count else []
    found = []
    for begin, end in pairwise(bounds):
        seen, kind, turn, code, *counts = columns[:, begin].tolist()
        if seen:
            what = RunKind(kind) if kind >= 0 else None
            found.append(Stretch(begin, ids[begin:end].tolist(), what, turn, _FATES[code], *counts))
    return _with_text(found, decoder) if decoder is not None else found


def _code(fate: TokenFate) -> int:
    return _FATES.index(fate)


def _of_runs(cached: EncodedDocument, mask: Mask) -> tuple[NDArray[Any], ...]:
    """(T,) kind, turn, whether the mask selects it, and whether only the train flags of the data leave it out."""
    ends, kinds, turns, trains = (np.array(column) for column in zip(*cached.runs, strict=True))
    kinds, turns, offsets = kinds.astype(np.int8), turns.astype(np.int16), np.array([0, len(ends)])
    supervised, _ = supervised_runs(kinds, turns, trains.astype(np.float32), offsets, mask)
    always, _ = supervised_runs(kinds, turns, np.ones(len(ends), np.float32), offsets, mask)
    sizes = np.diff(ends, prepend=0)
    return tuple(np.repeat(column, sizes) for column in (kinds, turns, supervised, always & ~supervised))


def _with_text(found: Sequence[Stretch], decoder: Decoder) -> list[Stretch]:
    """The stretches with their texts. A text starts over where tokens are missing."""
    out: list[Stretch] = []
    gaps = [0, *(at for at, one in enumerate(found) if at and one.begin != _end(found[at - 1])), len(found)]
    for first, last in pairwise(gaps):
        some = found[first:last]
        for one, text in zip(some, decoder.spans([each.ids for each in some]), strict=True):
            out.append(replace(one, text=text, texts=tuple(decoder.pieces(one.ids))))
    return out


def _end(stretch: Stretch) -> int:
    return stretch.begin + len(stretch.ids)
