"""2. What happened to my data?"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    """A flow from one place to another."""

    source: str
    target: str
    count: int
    kind: str
    """Kind of the target: `kept`, `trained`, `untrained`, `lost` (dropped, truncated, rejected), `created`."""


@dataclass(frozen=True, slots=True)
class Reject:
    """A row or an example that could not be used. Its texts come from the data and must be escaped."""

    source: str
    file: str
    line: int | None
    """Line in its file, from 1."""
    reason: str
    detail: str
    path: str | None = None
    """Absolute path of the file on the machine of the run; None if there is none."""


@dataclass(frozen=True, slots=True)
class LedgerFlow:
    """The ledger of one source, or of all, as flows."""

    source: str
    """`all` for the sum."""
    rows: list[Link]
    """From the source to used, rejected, filtered and blank rows, by reason."""
    examples: list[Link]
    """From made to packed, by split, and dropped, by reason."""
    tokens: list[Link]
    """From the source and from created tokens, through encoded, to packed, truncated and dropped, by reason; from
    packed to trained, lost at heads and masked. Each place's inflow equals its outflow."""


@dataclass(frozen=True, slots=True)
class Flow:
    """What happened to all rows, examples and tokens."""

    sentence: str
    fates: list[LedgerFlow]
    """One for each source; if there are several, the sum comes first."""
    reasons: dict[str, str]
    """The meaning of each reason that occurs, and what to do, in a sentence."""
    rejects: list[Reject]
    """Some rejects of each reason."""
    rejected: dict[str, int]
    """Number of rejects by reason."""
    rejects_file: str | None
    """The file that lists all rejects."""
