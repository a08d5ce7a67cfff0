"""The store where the ranks of a job leave each other notes; no call takes longer than its limit.

It is torch.distributed's own TCPStore at MASTER_ADDR:MASTER_PORT. Under torchrun the launcher keeps it; elsewhere rank
0 does, and `init_process_group` finds it there later, because stores of one process on one port share their server.
"""

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from datetime import timedelta
from typing import Any, TypeVar

from ...schemas.errors import LaunchError
from .environment import Launch, launcher_variables, listed

Value = TypeVar("Value")
_OPEN: list[Any] = []
"""Keeps rank 0's store alive: otherwise its server would end before the process group connects."""


def within(seconds: float, work: Callable[[], Value]) -> Value:
    """What `work` returns, or TimeoutError: a call to a store may never return if its server hangs.

    A hanging thread is left running; it ends with the process.
    """
    result: Future[Value] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name="packtrain-launch", daemon=True).start()
    if not wait([result], seconds).done:
        raise TimeoutError(f"no answer in {seconds:g} seconds")
    return result.result()


def until(deadline: float, reached: Callable[[], bool], *, pause: float = 0.02) -> bool:
    """Poll with growing pauses until `reached()`. False if the deadline (of `time.monotonic`) passes first."""
    while not reached():
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(pause, left))
        pause = min(2 * pause, 0.5)
    return True


class RankStore:
    """The job's store, with keys under a prefix of its own.

    Args:
        seconds: how long joining may take.
        limit: seconds that a call may take.

    Raises:
        LaunchError: it cannot be reached in time; says who could not reach whom, and why.
        TimeoutError, RuntimeError: raised by any call if the store's server hangs or has ended.
    """

    def __init__(self, launch: Launch, name: str, seconds: float, limit: float = 10.0) -> None:
        import torch.distributed as dist

        self._store = dist.PrefixStore(f"packtrain/{name}/{launch.attempt}", _join(launch, seconds))
        self._limit = limit

    def set(self, key: str, value: str) -> None:
        """Write a note."""
        within(self._limit, lambda: self._store.set(key, value))

    def get(self, key: str) -> str:
        """Read a note that is there."""
        return within(self._limit, lambda: str(self._store.get(key).decode()))

    def first(self, key: str, value: str) -> str:
        """Write a note unless there is one; returns what is there now."""
        return within(self._limit, lambda: str(self._store.compare_set(key, "", value).decode()))

    def add(self, key: str, number: int = 1) -> int:
        """Add to a counter; returns its sum."""
        return within(self._limit, lambda: int(self._store.add(key, number)))

    def has(self, *keys: str) -> bool:
        """Whether all of these notes are there."""
        return within(self._limit, lambda: bool(self._store.check(list(keys))))


def _join(launch: Launch, seconds: float) -> Any:
    import torch.distributed as dist

    def connect(serve: bool) -> Any:
        limit = timedelta(seconds=seconds)
        address = launch.master_addr, launch.master_port
        return dist.TCPStore(*address, None, serve, limit, wait_for_workers=False, multi_tenant=True)

    serves = launch.rank == 0 and not launch.hosted
    try:
        try:
            store = within(seconds + 5, lambda: connect(serves))
        except RuntimeError as error:
            # The port is taken: if by a store, then another process takes itself for rank 0.
            if not serves or "EADDRINUSE" not in str(error):
                raise
            store = within(seconds + 5, lambda: connect(False))
    except (RuntimeError, TimeoutError, OSError) as error:
        raise LaunchError(_unreached(launch, seconds, error)) from error
    _OPEN.append(store)
    return store


def _unreached(launch: Launch, seconds: float, error: BaseException) -> str:
    who = f"rank {launch.rank} of {launch.world_size} on {socket.gethostname()}"
    saw = f"It saw {listed(launcher_variables())}."
    try:
        found = sorted({str(info[4][0]) for info in socket.getaddrinfo(launch.master_addr, launch.master_port)})
    except OSError as unknown:
        return (
            f"{who} cannot resolve MASTER_ADDR {launch.master_addr!r} ({unknown}). {saw} Give a name or address that "
            "every node can resolve; in a Slurm script the first of `scontrol show hostnames $SLURM_JOB_NODELIST`"
        )
    return (
        f"{who} did not reach {launch.place} ({', '.join(found)}), where {launch.keeper} keeps the job's store, in "
        f"{seconds:g} seconds: {str(error).splitlines()[0]}. {saw} Check that rank 0 was started and still runs (see "
        "its output), that MASTER_ADDR is its node, that MASTER_PORT is free there and open between the nodes, and "
        "that no two jobs share the port"
    )
