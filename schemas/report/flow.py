"""The section on what became of the data: supervised tokens, ledgers, and rows that could not be used."""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from ..dataset.ledger import Ledger, SourceLedger
from ..notebook import Shown, Table

COUNTED_ONLY = "more"
"""The reason of a line of rejects.jsonl that counts further rows, which are not listed."""


class Reject(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of rejects.jsonl: a row or an example that could not be used."""

    source: str
    file: str
    """The path of its file, as it is shown."""
    line: int
    """Line in its file, from 1."""
    reason: str
    """A short word, as the ledger counts it."""
    detail: str
    """A sentence on what is wrong with this row."""
    # Defaults are left out of the line, as `omit_defaults` says: nearly all rejects are whole rows.
    example: int = -1
    """Which example of its row; -1 for the whole row."""
    remedy: str = ""
    """What the reason means, and what to do."""
    excerpt: str = ""
    """The row's keys and the beginnings of its values, or the beginning of its line; empty if it cannot be shown."""


@dataclass(frozen=True, slots=True)
class Supervision:
    """What became of the supervised tokens: those that the mask wants trained."""

    supervised: int
    """Supervised tokens of all examples before anything was cut or dropped, and of further copies."""
    trained: int
    lost: dict[str, int]
    """Reason → supervised tokens that are not trained for it, the most frequent first. `max_length`: they were
    truncated; `first_token`: they come first in a piece; any other: their example or piece was dropped for it."""


@dataclass(frozen=True, slots=True, repr=False)
class Flow(Shown):
    """What happened to my data? The ledger, and some rejected rows."""

    supervision: Supervision
    """Over all sources."""

    sources: dict[str, SourceLedger]
    """The ledger of each source."""
    # Some of each reason, and not the first of all: a frequent reason would hide every other one.
    rejects: list[Reject]
    """Some rejects of each reason."""
    rejects_file: str | None
    """The file that lists all rejects; None before a run, which writes it."""

    def summary(self) -> str:
        return Ledger(self.sources).summary()

    def tables(self) -> Iterator[Table]:
        yield from Ledger(self.sources).tables()
        if self.rejects:
            rows = [(reject.source, reject.file, reject.line, reject.reason, reject.detail) for reject in self.rejects]
            yield Table("Some rejected rows", ("source", "file", "line", "reason", "detail"), rows)
