"""2. What happened to my data?"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    """So many go from one place to another."""

    source: str
    target: str
    count: int
    kind: str
    """Of the target: `kept`, `trained`, `untrained`, `lost` (dropped, truncated, rejected), `created`."""


@dataclass(frozen=True, slots=True)
class Reject:
    """A row or an example that could not be used. All its text is data's, and must be shown as text."""

    source: str
    file: str
    line: int | None
    """In its file, from 1."""
    reason: str
    detail: str
    path: str | None = None
    """Of the file on the machine of the run, absolute; None where it is none."""


@dataclass(frozen=True, slots=True)
class Fate:
    """The account of a source, or of all, as a flow."""

    source: str
    """`all` for the sum."""
    rows: list[Link]
    """From the source to used, rejected, filtered and blank rows, by reason."""
    examples: list[Link]
    """From made to packed, by split, and dropped, by reason."""
    tokens: list[Link]
    """From the source, and from what created tokens, over encoded, to packed, truncated and dropped, by reason; from
    packed to trained, lost at heads and not asked for. What flows into a place flows out of it."""


@dataclass(frozen=True, slots=True)
class Flow:
    """What became of everything."""

    sentence: str
    fates: list[Fate]
    """Of each source; where there are several, of all first."""
    reasons: dict[str, str]
    """For each reason word that occurs, what it means and what to do, in a sentence."""
    rejects: list[Reject]
    """Examples of each reason, not all."""
    rejected: dict[str, int]
    """All of them, by reason."""
    rejects_file: str | None
    """Where all of them are listed."""
