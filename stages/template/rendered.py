"""A rendered conversation: its text, and the runs that say what each part of it is."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...schemas.rows import NEXT_STOP_KINDS, PART_KINDS, UNPROVED_KINDS, RunKind


class Runs(NamedTuple):
    """A text's runs. Only `ends` differs between rows of one trace."""

    ends: tuple[int, ...]
    """The end of each run: one past its last character. Ascending; the last is the text's length."""
    kinds: tuple[int, ...]
    """Values of `schemas.rows.RunKind`."""
    turns: tuple[int, ...]
    """Index of each run's message."""
    trains: tuple[float, ...]
    """How much each run counts in the loss: True (1), False (not trained), or a weight."""


class Rendered(NamedTuple):
    """A rendered conversation."""

    text: str
    begin: int
    """The character at which the completion begins."""
    runs: Runs
    unproved: str
    """Why its turns, or the thoughts and tool calls in them, could not be located, or ""."""
    dropped: tuple[str, ...] = ()
    """Allowed losses: parts of the conversation that the template leaves out; see `Losses.check`."""


_NOTHING = Runs((0,), (int(RunKind.PROMPT),), (0,), (True,))
"""The one run of an empty text."""
_TURN = 5
"""A code of a character is the index of its message, shifted left by this many bits, plus its kind."""
_KIND = (1 << _TURN) - 1
_WHOLE = {
    kind: RunKind.HISTORY if kind.name.startswith("HISTORY") else RunKind.ASSISTANT
    for kind in (RunKind.HISTORY, RunKind.ASSISTANT, *PART_KINDS)
}
"""Kinds of parts of turns, with the kind of a whole turn."""


class Paint:
    """What each character of a text is. What is put later covers what was put before.

    Args:
        length: of the text, in characters.
    """

    def __init__(self, length: int) -> None:
        self.codes: NDArray[np.int32] = np.zeros(length, np.int32)
        self.weights: NDArray[np.float64] | None = None
        """(length,) how much each counts in the loss; None if all count 1."""

    def put(self, low: int, high: int, kind: int, message: int) -> None:
        """Say what the characters low..high are.

        Args:
            kind: a `RunKind`.
            message: index of the message that they belong to.
        """
        if low < high:
            self.codes[low:high] = message << _TURN | kind

    def runs(self) -> Runs:
        """The runs: they end where something changes."""
        codes, weights = self.codes, self.weights
        if not len(codes):
            return _NOTHING
        changes = codes[1:] != codes[:-1]
        if weights is not None:
            changes |= weights[1:] != weights[:-1]
        last = [*changes.nonzero()[0].tolist(), len(codes) - 1]
        found = codes[last].tolist()
        trains = [True] * len(last) if weights is None else [_flag(weight) for weight in weights[last].tolist()]
        return Runs(
            tuple([place + 1 for place in last]),
            tuple([code & _KIND for code in found]),
            tuple([code >> _TURN for code in found]),
            tuple(trains),
        )


def _flag(weight: float) -> float:
    return bool(weight) if weight in (0, 1) else weight


def solid(runs: Runs) -> Runs:
    """The runs without empty ones, and like neighbours as one; a prompt run for an empty text."""
    kept: list[tuple[int, int, int, float]] = []
    done = 0
    for run in zip(*runs, strict=True):
        if run[0] > done:
            if kept and kept[-1][1:] == run[1:]:
                kept.pop()
            kept.append(run)
            done = run[0]
    if not kept:
        return _NOTHING
    ends, kinds, turns, trains = zip(*kept, strict=True)
    return Runs(ends, kinds, turns, trains)


def same(first: Rendered, second: Rendered) -> bool:
    """Whether two renderings are equal."""
    if first._replace(runs=second.runs) != second:
        return False
    return solid(first.runs) == solid(second.runs)


def whole(runs: Runs) -> Runs:
    """The runs of whole turns, without their parts, and of whole headers after them. Digests are made of these: which
    parts of a turn are known does not make another example.
    """
    out: list[tuple[int, int, int, float]] = []
    before = -1
    for end, kind, turn, train in zip(*runs, strict=True):
        if kind in NEXT_STOP_KINDS:
            continue  # its characters belong to the run after it
        # As numbers where turns are unproved: digests are made of these texts.
        turn_kind = int(kind) if kind in UNPROVED_KINDS else _WHOLE.get(RunKind(kind), RunKind(kind))
        if kind != before and kind in _WHOLE and out and out[-1][1:] == (turn_kind, turn, train):
            out.pop()
        out.append((end, turn_kind, turn, train))
        before = kind
    return Runs(*zip(*out, strict=True))
