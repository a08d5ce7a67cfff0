"""Who is told how a run goes. The run never prints."""

from typing import Protocol


class Observer(Protocol):
    """Hears of stages, progress and notes."""

    def begin(self, stage: str, total: int, unit: str) -> None:
        """A stage begins that has `total` of something to do; 0 where nobody knows."""
        ...

    def advance(self, done: int, rows: int = 0, tokens: int = 0) -> None:
        """More of it is done."""
        ...

    def end(self) -> None:
        """The stage is over."""
        ...

    def note(self, text: str) -> None:
        """Something that a person would want to know."""
        ...


class Silent:
    """Hears everything and says nothing."""

    def begin(self, stage: str, total: int, unit: str) -> None:
        """See `Observer`."""

    def advance(self, done: int, rows: int = 0, tokens: int = 0) -> None:
        """See `Observer`."""

    def end(self) -> None:
        """See `Observer`."""

    def note(self, text: str) -> None:
        """See `Observer`."""
