"""Finds out what happened to every token of a document: whether it is trained, and if not, why."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from ...schemas.rows import IGNORE_INDEX, RunKind
from ...stages.mask.policy import Mask, supervised_runs
from .packed_rows import Standing


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


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a document."""

    index: int
    """Position in the document, counted from 0."""
    id: int
    text: str
    kind: RunKind | None
    """Kind of the run; None without the cache."""
    turn: int
    """Index of its message, or -1."""
    fate: TokenFate
    trained: int
    """Number of pieces that train it."""
    stands: int
    """Number of pieces that contain it."""


Run = tuple[int, int, int, bool]
"""(end, kind, turn, train) of a run"""


def asked_for(runs: Sequence[Run], mask: Mask) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return (T,) which tokens the mask selects, and (T,) which it would select without the train flags of the data."""
    ends, kinds, turns, trains = (np.array(column) for column in zip(*runs, strict=True))
    offsets = np.array([0, len(runs)])
    sizes = np.diff(ends, prepend=0)
    supervised = supervised_runs(kinds.astype(np.int8), turns.astype(np.int16), trains.astype(np.bool_), offsets, mask)
    always = supervised_runs(kinds.astype(np.int8), turns.astype(np.int16), np.ones(len(runs), np.bool_), offsets, mask)
    return np.repeat(supervised, sizes), np.repeat(always & ~supervised, sizes)


def tokens_of(
    ids: Sequence[int], texts: Sequence[str], runs: Sequence[Run], mask: Mask, standings: Sequence[Standing]
) -> list[Token]:
    """Return all tokens of a document that is in the cache.

    Args:
        runs: the runs over its tokens.
        standings: its pieces; empty for a dropped document.
    """
    supervised, flagged = asked_for(runs, mask)
    ends = np.array([run[0] for run in runs])
    owner = np.searchsorted(ends, np.arange(len(ids)), side="right")
    trained, stands = _counts(len(ids), standings)
    heads = {standing.start for standing in standings}
    out = []
    for index, (id, text) in enumerate(zip(ids, texts, strict=True)):
        _, kind, turn, _ = runs[int(owner[index])]
        if trained[index]:
            fate = TokenFate.TRAINED
        elif not standings:
            fate = TokenFate.DROPPED
        elif not stands[index]:
            fate = TokenFate.CUT
        elif not supervised[index]:
            fate = TokenFate.FLAGGED if flagged[index] else TokenFate.MASKED
        else:
            fate = TokenFate.HEAD if index in heads else TokenFate.OVERLAP
        out.append(Token(index, id, text, RunKind(kind), turn, fate, int(trained[index]), int(stands[index])))
    return out


def tokens_of_pieces(count: int, standings: Sequence[Standing], texts: Sequence[Sequence[str]]) -> list[Token]:
    """Return a document's tokens from the packed rows, if the cache is gone; kinds and cut tokens are then unknown.

    Args:
        count: tokens of the whole document.
        texts: the texts of each piece's tokens.
    """
    trained, stands = _counts(count, standings)
    known: dict[int, tuple[int, str]] = {}
    for standing, mine in zip(standings, texts, strict=True):
        for offset, (id, text) in enumerate(zip(standing.ids, mine, strict=True)):
            known[standing.start + offset] = id, text
    out = []
    for index, (id, text) in sorted(known.items()):
        fate = TokenFate.TRAINED if trained[index] else TokenFate.NOT_TRAINED
        out.append(Token(index, id, text, None, -1, fate, int(trained[index]), int(stands[index])))
    return out


def _counts(count: int, standings: Sequence[Standing]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (T,) how many pieces train each token, and (T,) how many contain it."""
    trained, stands = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    for standing in standings:
        here = slice(standing.start, standing.start + len(standing.labels))
        trained[here] += np.array(standing.labels) != IGNORE_INDEX
        stands[here] += 1
    return trained, stands
