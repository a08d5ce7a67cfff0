"""How long each stage of a run took."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

NAME = "_run/timings.json"
"""Where a run writes them down."""


@dataclass(slots=True)
class Timings:
    """Wall seconds of each stage of a run, in order."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a block."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began
