"""The interface through which a run reports progress and notes; a run itself never prints."""

import sys

from ..schemas.escape import escape, without_secrets


class Observer:
    """Receives stages, progress and notes; this one ignores them."""

    # Every method does nothing, so that code that is called without an observer need not ask whether there is one.

    def begin(self, stage: str, total: int, unit: str) -> None:
        """A stage begins.

        Args:
            stage: its name, such as `encode`.
            total: all work of the stage in `unit`; 0 if unknown.
            unit: what work is counted in, such as `B` for bytes of the inputs.
        """

    def advance(self, done: int, rows: int = 0, tokens: int = 0) -> None:
        """Part of the stage is done: how much since the last call, not since the beginning.

        Args:
            done: work, in the unit of `begin`.
            rows: rows that were done by this work.
            tokens: their tokens.
        """

    def end(self) -> None:
        """The stage is over."""

    def note(self, text: str) -> None:
        """A run reports something that the user should know."""


class Kept(Observer):
    """An observer that keeps notes for the report, and hands everything on to another observer."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self.notes: list[str] = []
        """In the order in which they came, without passwords."""

    def begin(self, stage: str, total: int, unit: str) -> None:
        """Hand the beginning of a stage on."""
        self._observer.begin(stage, total, unit)

    def advance(self, done: int, rows: int = 0, tokens: int = 0) -> None:
        """Hand progress on."""
        self._observer.advance(done, rows, tokens)

    def end(self) -> None:
        """Hand the end of a stage on."""
        self._observer.end()

    def note(self, text: str) -> None:
        """Keep a note, and hand it on."""
        # Kept notes get into reports, which are passed on: no password of a URL may be in them.
        self.notes.append(without_secrets(text))
        self._observer.note(text)


class Printed(Observer):
    """An observer that prints notes on standard error, for runs that are started from Python."""

    def note(self, text: str) -> None:
        """Print a note as one line, without passwords and control characters."""
        print(escape(without_secrets(text)), file=sys.stderr, flush=True)
