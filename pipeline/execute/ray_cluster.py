"""The executor for a Ray cluster, with Ray Core tasks.

Tasks are small and sent with the call. Their data goes through the stores, not through Ray's object store, because its
content is lost when a machine is lost. Ray gets at most twice as many tasks at once as the cluster has processors, so a
growing cluster gets more.

Ray's own retries are off (`max_retries=0`): they would endlessly repeat a task that fills the memory. Here a task has
the same number of tries as on one machine, and a lost machine costs each of its tasks one.
"""

import logging
import os
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Any

from ...schemas.errors import ConfigError
from .executor import TRIES, Executor, Result, Task, attempt, limit_threads, lost, named, never

_QUIET = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_USAGE_STATS_ENABLED": "0"}


class RayExecutor(Executor):
    """Ray Core tasks. All machines must see the stores of the tasks.

    Args:
        address: `auto` or `host:port` of a cluster; None starts Ray on this machine, for this run.
        workers: tasks at once, if Ray is started here.
        seconds: time limit of a task; exceeding it counts as a death of its worker.

    Raises:
        ConfigError: Ray is not installed, or there is no cluster at the address.
    """

    def __init__(self, address: str | None, workers: int, *, seconds: float | None = None) -> None:
        for name, value in _QUIET.items():
            os.environ.setdefault(name, value)
        try:
            import ray
        except ImportError:
            raise ConfigError("run.executor ray needs Ray: pip install 'packtrain[ray]'") from None
        self._ray: Any = ray
        self._seconds = seconds
        self._ours = not ray.is_initialized()
        if self._ours:
            self._begin(address, workers)
        self._remote = ray.remote(_perform).options(num_cpus=1, max_retries=0, name="packtrain")

    def map(
        self, function: Callable[[Task], Result], tasks: Iterable[Task], made: Callable[[Task], bool] = never
    ) -> Generator[Result, None, None]:
        """See `Executor`. Running tasks are left alone when it is left early: `ray.cancel` aborts this process if the
        task ends meanwhile (https://github.com/ray-project/ray/pull/54785, seen with 2.60).
        """
        running: dict[Any, tuple[Task, int]] = {}
        again = deque[tuple[Task, int]]()
        fresh = ((task, 0) for task in tasks if not made(task))
        while True:
            room = 2 * max(1, int(self._ray.cluster_resources().get("CPU", 1)))
            while len(running) < room and (job := again.popleft() if again else next(fresh, None)):
                running[self._remote.remote(function, job[0], self._seconds)] = job
            if not running:
                return
            done, _ = self._ray.wait(list(running), num_returns=1)
            for reference in done:
                task, tries = running.pop(reference)
                try:
                    answer, error = self._ray.get(reference)
                except self._ray.exceptions.RayError as ending:
                    if tries + 1 == TRIES:  # the last line of Ray's page says, for example, that packtrain is not there
                        last = " ".join(str(ending).strip().splitlines()[-1:])
                        late = f", or ran longer than run.task_seconds ({self._seconds:g} s)" if self._seconds else ""
                        raise lost(task, f"{type(ending).__name__}{late}: {last}") from ending
                    again.append((task, tries + 1))
                    continue
                if error is not None:
                    raise named(error, task) from error
                yield answer

    def close(self) -> None:
        """End Ray if it was started here, or disconnect from the cluster."""
        if self._ours:
            self._ray.shutdown()

    def _begin(self, address: str | None, workers: int) -> None:
        # here, even if another cluster runs on this machine; little goes through Ray's object store
        here = {"address": "local", "num_cpus": workers, "object_store_memory": 100 << 20, "include_dashboard": False}
        there = here if address is None else {"address": address}
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            host, colon, port = (address or "").rpartition(":")
            if colon and "://" not in host:  # Ray itself would retry for minutes, and print messages
                socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
            self._ray.init(**there, logging_level=logging.ERROR, log_to_driver=False, configure_logging=True)
        except (OSError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"run.address: there is no Ray cluster at {address} ({error}); `ray start --head` starts one"
            ) from error
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():  # Ray installs its own; they do not let a run resume
                signal.signal(number, handler)


def _perform(function: Callable[[Any], Any], task: Any, seconds: float | None) -> tuple[Any, Exception | None]:
    """Run a task in a Ray worker. An error is returned, because Ray would wrap what is raised."""
    from .template_watchdog import begin_task  # imported here, because the driver should not import jinja2

    limit_threads()
    begin_task()
    timer = threading.Timer(seconds or threading.TIMEOUT_MAX, os._exit, (1,))
    timer.daemon = True
    timer.start()
    try:
        return attempt(function, task)
    finally:
        timer.cancel()
