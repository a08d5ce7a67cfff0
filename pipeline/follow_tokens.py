"""What became of every token of a document: trained, or why not."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from ..schemas.rows import IGNORE_INDEX, Kind
from ..stages.mask import Mask, asked_runs
from .follow_rows import Standing


class Fate(StrEnum):
    """What became of a token. Where it stands in several pieces, the best of them counts."""

    TRAINED = "trained"
    NOT_ASKED = "not asked for"
    """The mask leaves it out."""
    FLAGGED = "not asked for: its message says train: false"
    HEAD = "head of a piece"
    """Asked for, but first in its piece, where no label can be."""
    OVERLAP = "overlap"
    """Asked for, but here for the second time, and the piece that would train it is left out."""
    CUT = "cut"
    """In no packed row, though others of its document are."""
    DROPPED = "dropped"
    """Its document is left out whole."""
    NOT_TRAINED = "not trained"
    """Without a label. Whether it was asked for is not known without the cache."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a document."""

    index: int
    """Within the document."""
    id: int
    text: str
    kind: Kind | None
    """None without the cache."""
    turn: int
    """Index of its message, or -1."""
    fate: Fate
    trained: int
    """In how many pieces it is trained."""
    stands: int
    """In how many pieces it stands."""


Run = tuple[int, int, int, bool]
"""(end, kind, turn, train)"""


def asked_for(runs: Sequence[Run], mask: Mask) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """(T,) which tokens of a document the mask asks for, and (T,) which it does not only because of a train flag."""
    ends, kinds, turns, trains = (np.array(column) for column in zip(*runs, strict=True))
    offsets = np.array([0, len(runs)])
    sizes = np.diff(ends, prepend=0)
    asked = asked_runs(kinds.astype(np.int8), turns.astype(np.int16), trains.astype(np.bool_), offsets, mask)
    always = asked_runs(kinds.astype(np.int8), turns.astype(np.int16), np.ones(len(runs), np.bool_), offsets, mask)
    return np.repeat(asked, sizes), np.repeat(always & ~asked, sizes)


def tokens_of(
    ids: Sequence[int], texts: Sequence[str], runs: Sequence[Run], mask: Mask, standings: Sequence[Standing]
) -> list[Token]:
    """All tokens of a document that the cache has.

    Args:
        runs: over the tokens.
        standings: its pieces; none for a document that was dropped.
    """
    asked, flagged = asked_for(runs, mask)
    ends = np.array([run[0] for run in runs])
    owner = np.searchsorted(ends, np.arange(len(ids)), side="right")
    trained, stands = _counts(len(ids), standings)
    heads = {standing.start for standing in standings}
    out = []
    for index, (id, text) in enumerate(zip(ids, texts, strict=True)):
        _, kind, turn, _ = runs[int(owner[index])]
        if trained[index]:
            fate = Fate.TRAINED
        elif not standings:
            fate = Fate.DROPPED
        elif not stands[index]:
            fate = Fate.CUT
        elif not asked[index]:
            fate = Fate.FLAGGED if flagged[index] else Fate.NOT_ASKED
        else:
            fate = Fate.HEAD if index in heads else Fate.OVERLAP
        out.append(Token(index, id, text, Kind(kind), turn, fate, int(trained[index]), int(stands[index])))
    return out


def tokens_of_pieces(count: int, standings: Sequence[Standing], texts: Sequence[Sequence[str]]) -> list[Token]:
    """The tokens that stand in packed rows, where the cache is gone: kinds and what was cut are not known.

    Args:
        count: tokens of the whole document.
        texts: of the tokens of each piece.
    """
    trained, stands = _counts(count, standings)
    known: dict[int, tuple[int, str]] = {}
    for standing, mine in zip(standings, texts, strict=True):
        for offset, (id, text) in enumerate(zip(standing.ids, mine, strict=True)):
            known[standing.start + offset] = id, text
    out = []
    for index, (id, text) in sorted(known.items()):
        fate = Fate.TRAINED if trained[index] else Fate.NOT_TRAINED
        out.append(Token(index, id, text, None, -1, fate, int(trained[index]), int(stands[index])))
    return out


def _counts(count: int, standings: Sequence[Standing]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(T,) in how many pieces each token is trained, and (T,) in how many it stands."""
    trained, stands = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    for standing in standings:
        here = slice(standing.start, standing.start + len(standing.labels))
        trained[here] += np.array(standing.labels) != IGNORE_INDEX
        stands[here] += 1
    return trained, stands
