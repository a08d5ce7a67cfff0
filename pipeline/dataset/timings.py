"""How long each stage of a run took, and how many tokens it processed."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from ...schemas.jsontext import decode_note

NAME = "_run/timings.json"
"""The file with the timings."""


@dataclass(slots=True)
class Timings:
    """Wall seconds of each stage of a run, in order."""

    seconds: dict[str, float] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    """Tokens that this run itself processed, by stage; work of earlier runs is not counted."""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure the time of a `with` block."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

    def summed(self, name: str, busy: float, tokens: int) -> None:
        """Add a stage's work in all workers: total seconds and tokens."""
        self.seconds[f"{name}, summed over workers"] = busy
        self.tokens[name] = tokens

    def to_json(self) -> bytes:
        """The content of the file."""
        return msgspec.json.format(msgspec.json.encode({"seconds": self.seconds, "tokens": self.tokens}))

    @classmethod
    def from_json(cls, data: bytes) -> "Timings":
        """The inverse of `to_json`.

        Raises:
            msgspec.MsgspecError: the content is not valid.
        """
        return decode_note(data, cls)
