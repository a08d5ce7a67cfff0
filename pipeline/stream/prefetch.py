"""Produces items in a thread, before they are needed."""

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

_Item = TypeVar("_Item")
_POLL_SECONDS = 0.1


class StoppedError(Exception):
    """Raised by a producer that has been asked to stop."""


def ahead(items: Iterator[_Item], stop: threading.Event) -> Iterator[_Item]:
    """Yield the items, of which a thread makes the next two before they are asked for. `stop` ends it early."""
    ready: queue.Queue[tuple[_Item | None, BaseException | None]] = queue.Queue(1)

    def put(item: _Item | None, error: BaseException | None = None) -> bool:
        while not stop.is_set():
            try:
                ready.put((item, error), timeout=_POLL_SECONDS)
            except queue.Full:
                continue
            return True
        return False

    def work() -> None:
        try:
            for item in items:
                if not put(item):
                    return
            put(None)
        except StoppedError:
            pass
        except BaseException as error:
            put(None, error)
        finally:
            items.close()  # type: ignore[attr-defined]  # a generator

    thread = threading.Thread(target=work, name="packtrain-live", daemon=True)
    thread.start()
    try:
        while True:
            try:
                item, error = ready.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                if stop.is_set():
                    return  # the consumer stops as well
                continue
            if error is not None:
                raise error
            if item is None:
                return
            yield item
    finally:
        stop.set()
        thread.join()
