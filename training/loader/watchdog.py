"""Reports what a rank waits for, well before collective operations of other ranks time out without naming a reason."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TypeVar

from ...schemas.errors import StalledError
from ...schemas.units import duration
from ..order.rank import RankInfo
from ..order.steps import Steps

_LOG = logging.getLogger(__name__)
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Watchdog:
    """How long a batch may take. Collectives time out after ten minutes (NCCL) or thirty (gloo)."""

    report_after: float = 30.0
    """Seconds until a warning says what the rank waits for. The warning is repeated after twice that time, and so
    on.
    """
    give_up_after: float | None = 480.0
    """Seconds until the waiting rank stops with an error; None waits forever."""

    def wait(self, queue: "SimpleQueue[_Item]", what: Callable[[], str]) -> _Item:
        """Wait for a queue's next item, and return it.

        Args:
            what: describes what the rank waits for; only called if it takes too long.

        Raises:
            StalledError: nothing came in time.
        """
        began = time.monotonic()
        report = self.report_after
        while True:
            limit = report if self.give_up_after is None else min(report, self.give_up_after)
            try:
                return queue.get(timeout=max(0.0, limit - (time.monotonic() - began)))
            except Empty:
                pass
            waited = time.monotonic() - began
            if self.give_up_after is not None and waited >= self.give_up_after:
                raise StalledError(
                    f"{what()}; gave up after {duration(waited)}, to report this before other ranks time out. Check "
                    "the store that is named, or give Watchdog(give_up_after=...) more time"
                )
            _LOG.warning("%s; %s by now", what(), duration(waited))
            report *= 2


def whereabouts(steps: Steps, place: RankInfo, position: int) -> str:
    """Say what the batch of a step waits for."""
    order = steps.global_order
    rows = order.near(position, min(position + steps.rows_per_step, steps.total))
    urls = sorted({order.corpus.url_of(row) for row in rows.tolist()})
    more = f" and {len(urls) - 3:,} more" if len(urls) > 3 else ""
    text = (
        f"rank {place.rank} of {place.world_size} waits for step {position // steps.rows_per_step:,}, "
        f"whose rows are in {', '.join(urls[:3])}{more}"
    )
    downloads = "; ".join(str(fetch) for part in order.corpus.parts for fetch in part.files.busy())
    return f"{text}; downloading: {downloads}" if downloads else text
