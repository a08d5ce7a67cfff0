"""The interface through which a run reports progress and notes; a run itself never prints."""

import sys

from ..schemas.escape import escape, without_secrets


class Observer:
    """Receives stages, progress and notes; this one ignores them."""

    # Every method does nothing, so that code that is called without an observer need not ask whether there is one.

    def begin(self, stage: str, total: int, unit: str) -> None:
        """A stage begins. `total` is the amount of work in units, or 0 if unknown."""

    def advance(self, done: int, rows: int = 0, tokens: int = 0) -> None:
        """Further units, rows and tokens of the stage are done."""

    def end(self) -> None:
        """The stage is over."""

    def note(self, text: str) -> None:
        """A run reports something that the user should know."""


class Kept(Observer):
    """An observer that keeps notes, and hands everything to another one."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self.notes: list[str] = []

    def begin(self, stage: str, total: int, unit: str) -> None:
        """See `Observer`."""
        self._observer.begin(stage, total, unit)

    def advance(self, done: int, rows: int = 0, tokens: int = 0) -> None:
        """See `Observer`."""
        self._observer.advance(done, rows, tokens)

    def end(self) -> None:
        """See `Observer`."""
        self._observer.end()

    def note(self, text: str) -> None:
        """See `Observer`."""
        # Kept notes get into reports, which are passed on: no password of a URL may be in them.
        self.notes.append(without_secrets(text))
        self._observer.note(text)


class Printed(Observer):
    """An observer that prints notes on standard error, for runs that are started from Python."""

    def note(self, text: str) -> None:
        """See `Observer`."""
        print(escape(without_secrets(text)), file=sys.stderr, flush=True)
