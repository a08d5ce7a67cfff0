"""Reports what a rank waits for, well before a collective of other ranks times out without a reason."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from ...schemas.errors import StalledError
from ...schemas.units import duration

_LOG = logging.getLogger(__name__)
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Watchdog:
    """How long a batch may take. Collectives time out after ten minutes (NCCL) or thirty (gloo)."""

    report_after: float = 30.0
    """Seconds until a warning says what is awaited; repeated after twice as long, and so on."""
    give_up_after: float | None = 480.0
    """Seconds until the waiting rank stops with an error; None for never."""

    def wait(self, future: "Future[_Result]", what: Callable[[], str]) -> _Result:
        """The future's result.

        Args:
            what: describes what is awaited; only called if it takes too long.

        Raises:
            StalledError: it did not come in time.
        """
        began = time.monotonic()
        report = self.report_after
        while True:
            limit = report if self.give_up_after is None else min(report, self.give_up_after)
            try:
                return future.result(timeout=max(0.0, limit - (time.monotonic() - began)))
            except TimeoutError:
                if future.done():  # it finished at the last moment, or the timeout is its own error
                    return future.result()
            waited = time.monotonic() - began
            if self.give_up_after is not None and waited >= self.give_up_after:
                raise StalledError(
                    f"{what()}; gave up after {duration(waited)}, so that this is known before other ranks time out. "
                    "Look at the store that it names, or give Watchdog(give_up_after=...) more time"
                )
            _LOG.warning("%s; %s by now", what(), duration(waited))
            report *= 2
