"""A rendered conversation: its text, and the runs that say what each part of it is."""

from typing import NamedTuple

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
    """Allowed losses: parts of the conversation that the template leaves out; see `check_losses`."""


NOTHING = Runs((0,), (int(RunKind.PROMPT),), (0,), (True,))
"""The one run of an empty text."""
_WHOLE = {
    kind: RunKind.HISTORY if kind.name.startswith("HISTORY") else RunKind.ASSISTANT
    for kind in (RunKind.HISTORY, RunKind.ASSISTANT, *PART_KINDS)
}
"""Kinds of parts of turns, with the kind of a whole turn."""


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
    return Runs(*zip(*kept, strict=True)) if kept else NOTHING


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
