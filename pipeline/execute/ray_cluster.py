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
from .executor import (
    MAX_TRIES,
    Executor,
    Result,
    Task,
    limit_threads,
    lost_task_error,
    never_done,
    run_task,
    with_task_name,
)

_QUIET_ENVIRONMENT = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_USAGE_STATS_ENABLED": "0"}
"""Variables that keep Ray from printing a warning, and from reporting its use to its makers."""


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
        for name, value in _QUIET_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        try:
            import ray
        except ImportError:
            raise ConfigError("run.executor ray needs Ray: pip install 'packtrain[ray]'") from None
        self._ray: Any = ray
        self._seconds = seconds
        # A program that uses Ray, and calls packtrain, has a connection already, which stays the program's.
        self._started_here = not ray.is_initialized()
        if self._started_here:
            self._connect(address, workers)
        self._remote_task = ray.remote(_run_remotely).options(num_cpus=1, max_retries=0, name="packtrain")

    def map(
        self, function: Callable[[Task], Result], tasks: Iterable[Task], is_done: Callable[[Task], bool] = never_done
    ) -> Generator[Result, None, None]:
        """Yield the results of tasks in the order in which they are done.

        If the caller leaves the loop early, running tasks are left to end by themselves: `ray.cancel` aborts this
        process if the task ends meanwhile (https://github.com/ray-project/ray/pull/54785, seen with 2.60).

        Raises:
            TaskError: `MAX_TRIES` workers died over a task. Errors of tasks are raised, too.
        """
        # Ray's reference → the task, and how many workers have died over it.
        running: dict[Any, tuple[Task, int]] = {}
        suspects: deque[tuple[Task, int]] = deque()  # the same of tasks to try again
        # No worker has died over a new task.
        new_tasks = ((task, 0) for task in tasks if not is_done(task))
        while True:
            # Asked each time: a cluster may grow. Twice as many tasks, so that none of its workers waits for the next.
            processors = max(1, int(self._ray.cluster_resources().get("CPU", 1)))
            while len(running) < 2 * processors:
                next_task = suspects.popleft() if suspects else next(new_tasks, None)
                if next_task is None:
                    break
                task, deaths = next_task
                running[self._remote_task.remote(function, task, self._seconds)] = (task, deaths)
            if not running:
                return
            finished, _ = self._ray.wait(list(running), num_returns=1)
            for reference in finished:
                task, deaths = running.pop(reference)
                try:
                    result, error = self._ray.get(reference)
                except self._ray.exceptions.RayError as ray_error:
                    if deaths + 1 == MAX_TRIES:
                        raise lost_task_error(task, self._death_reason(ray_error)) from ray_error
                    suspects.append((task, deaths + 1))
                    continue
                if error is not None:
                    raise with_task_name(error, task) from error
                yield result

    def _death_reason(self, error: Exception) -> str:
        """How the worker of a task died, for the message about a task that is given up."""
        # Ray's message fills a page, whose last line says, for example, that packtrain is not installed there.
        last_line = " ".join(str(error).strip().splitlines()[-1:])
        # A worker ends itself once its time is over, and Ray says only that it ended. So the limit is named, too.
        time_limit = f", or ran longer than run.task_seconds ({self._seconds:g} s)" if self._seconds else ""
        return f"{type(error).__name__}{time_limit}: {last_line}"

    def end_idle_workers(self) -> None:
        """Nothing to do: Ray ends its idle workers by itself."""

    def close(self) -> None:
        """End Ray, or the connection to its cluster, if `__init__` made it. The connection of a program that calls
        packtrain stays open.
        """
        if self._started_here:
            self._ray.shutdown()

    def _connect(self, address: str | None, workers: int) -> None:
        """Connect to a cluster, or start Ray on this machine.

        Raises:
            ConfigError: there is no cluster at the address.
        """
        options: dict[str, Any] = {"address": address}
        if address is None:
            # "local": even if another cluster runs on this machine. Little goes through Ray's object store.
            options = {
                "address": "local",
                "num_cpus": workers,
                "object_store_memory": 100 << 20,
                "include_dashboard": False,
            }
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            # A `host:port` is tried first, because Ray would retry for minutes, and print messages. `auto` and
            # `ray://…` name no port to try.
            host, colon, port = (address or "").rpartition(":")
            if colon and "://" not in host:
                socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
            self._ray.init(**options, logging_level=logging.ERROR, log_to_driver=False, configure_logging=True)
        except (OSError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"run.address: there is no Ray cluster at {address} ({error}); `ray start --head` starts one"
            ) from error
        # Ray installs handlers of its own, which end the process before it can say how to go on.
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _run_remotely(function: Callable[[Any], Any], task: Any, seconds: float | None) -> tuple[Any, Exception | None]:
    """Run a task in a Ray worker. An error is returned, because Ray would wrap what is raised."""
    from .template_watchdog import begin_task  # imported here, because the main process should not import jinja2

    limit_threads()
    begin_task()  # the kernel kills this process from now on if a chat template renders for too long
    # Ray has no time limit of a task, so a timer ends this process. The longest time that a timer takes stands for
    # none.
    timer = threading.Timer(seconds or threading.TIMEOUT_MAX, os._exit, (1,))
    timer.daemon = True
    timer.start()
    try:
        return run_task(function, task)
    finally:
        timer.cancel()
