"""How long each stage of a run took, and what it worked on."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from ..schemas.jsontext import decode_note

NAME = "_run/timings.json"
"""Where a run writes them down."""


@dataclass(slots=True)
class Timings:
    """Wall seconds of each stage of a run, in order."""

    seconds: dict[str, float] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    """Of stages that may find some of their work done: tokens that this run itself did, and no earlier one."""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a block."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

    def summed(self, name: str, busy: float, tokens: int) -> None:
        """Add what workers did in a stage: their seconds in all, and the tokens."""
        self.seconds[f"{name}, summed over workers"] = busy
        self.tokens[name] = tokens

    def to_json(self) -> bytes:
        """The file's content."""
        return msgspec.json.format(msgspec.json.encode({"seconds": self.seconds, "tokens": self.tokens}))

    @classmethod
    def from_json(cls, data: bytes) -> "Timings":
        """The inverse of `to_json`.

        Raises:
            msgspec.MsgspecError: it is something else.
        """
        return decode_note(data, cls)
