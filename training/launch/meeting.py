"""The store where the ranks of a job leave each other notes, joined under a time limit.

It is torch.distributed's own TCPStore at MASTER_ADDR:MASTER_PORT. Under torchrun the launcher keeps it; elsewhere rank
0 does, and `init_process_group` finds it there later, because stores of one process on one port share their server.
"""

import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from ...schemas.errors import LaunchError
from .environment import Launch, shown, told

Value = TypeVar("Value")
_KEPT: list[Any] = []
"""Stores that were joined. Were rank 0's to go, so would the server, before the process group asks for it."""


def join(launch: Launch, seconds: float) -> Any:
    """The job's store.

    Raises:
        LaunchError: it cannot be reached in time; says who could not, whom, and why.
    """
    import torch.distributed as dist

    def connect(host: bool) -> Any:
        return dist.TCPStore(
            launch.master_addr,
            launch.master_port,
            None,
            host,
            timedelta(seconds=seconds),
            wait_for_workers=False,
            multi_tenant=True,
        )

    hosts = launch.rank == 0 and not launch.hosted
    try:
        try:
            store = within(seconds + 5, lambda: connect(hosts))
        except RuntimeError as error:
            # The port is taken: by another process that believes to be rank 0, if it is a store.
            if not hosts or "EADDRINUSE" not in str(error):
                raise
            store = within(seconds + 5, lambda: connect(False))
    except (RuntimeError, TimeoutError, OSError) as error:
        raise LaunchError(_unreached(launch, seconds, error)) from error
    _KEPT.append(store)
    return store


def within(seconds: float, work: Callable[[], Value]) -> Value:
    """What `work` returns, or TimeoutError: calls into a store whose server is frozen may never come back.

    The thread that hangs is left behind; it ends with the process.
    """
    outcome: list[Value] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, name="packtrain-launch", daemon=True)
    thread.start()
    thread.join(seconds)
    if failure:
        raise failure[0]
    if not outcome:
        raise TimeoutError(f"no answer in {seconds:g} seconds")
    return outcome[0]


def until(deadline: float, reached: Callable[[], bool], *, pause: float = 0.05) -> bool:
    """Ask again and again, ever more slowly, until it is so or the time (of `time.monotonic`) is up."""
    while not reached():
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(pause, left))
        pause = min(2 * pause, 1.0)
    return True


def _unreached(launch: Launch, seconds: float, error: BaseException) -> str:
    place = f"{launch.master_addr}:{launch.master_port}"
    who = f"rank {launch.rank} of {launch.world_size} on {socket.gethostname()}"
    saw = f"It saw {shown(told())}."
    try:
        found = sorted({str(info[4][0]) for info in socket.getaddrinfo(launch.master_addr, launch.master_port)})
    except OSError as unknown:
        return (
            f"{who} cannot resolve MASTER_ADDR {launch.master_addr!r} ({unknown}). {saw} Give a name or address that "
            "every node can resolve; in a Slurm script the first of `scontrol show hostnames $SLURM_JOB_NODELIST`"
        )
    keeper = "the launcher of the first node keeps" if launch.hosted else "rank 0 keeps"
    return (
        f"{who} did not reach {place} ({', '.join(found)}), where {keeper} the job's store, in {seconds:g} seconds: "
        f"{str(error).splitlines()[0]}. {saw} Check that rank 0 was started and still lives (its own output says "
        "so), that MASTER_ADDR is its node and MASTER_PORT is free there and open between the nodes, and that no "
        "two jobs share the port"
    )
