"""The executor for a Ray cluster, with Ray Core tasks.

Tasks are small and sent with the call. Their data goes through the stores, not through Ray's object store, because its
content is lost when a machine is lost. Ray gets at most twice as many tasks at once as the cluster has processors, so a
growing cluster gets more.

Ray's own retries are off (`max_retries=0`): they would endlessly repeat a task that fills the memory, treat a lost
machine like a crash, and not name the task over which a worker died. Retries are handled here, as for `local`.
"""

import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Literal

from ...schemas.errors import ConfigError, PacktrainError, TaskError
from ...schemas.units import duration
from ..store.open import Store
from .executor import Executor, Quarantine, Result, Task, TaskQueue, limit_threads, named

LOST_MACHINES = 20
"""Number of machines that may be lost while they run a task."""
_CANARY = "_run/canary-"
_STORE_BYTES = 100 << 20
"""Bytes of Ray's object store, if Ray is started here; little goes through it."""
_PATIENCE_SECONDS = 60.0
_NOTED_SECONDS = 10
_REACH_SECONDS = 10.0
_QUIET = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_USAGE_STATS_ENABLED": "0"}


def _reach(address: str | None) -> None:
    """Check that something listens at `host:port`, because Ray itself would retry for minutes and print messages.

    Raises:
        OSError: nothing listens there.
        ValueError: the port is not a number.
    """
    host, colon, port = (address or "").rpartition(":")
    if colon and "://" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_SECONDS).close()


class RayExecutor(Executor):
    """Ray Core tasks.

    Args:
        address: `auto` or `host:port` of a cluster; None starts Ray on this machine, for this run.
        workers: tasks at once, if Ray is started here.
        stores: the stores that every machine must reach.
        seconds: time limit of a task; exceeding it counts as a death of its worker.
        policy: see `executors.Quarantine`.

    Raises:
        ConfigError: Ray is not installed, there is no cluster at the address, or a machine of it has another packtrain
            or does not see a store.
    """

    def __init__(
        self,
        address: str | None,
        workers: int,
        stores: Sequence[Store],
        *,
        seconds: float | None = None,
        policy: Literal["stop", "continue"] = "stop",
    ) -> None:
        for name, value in _QUIET.items():
            os.environ.setdefault(name, value)
        try:
            import ray
        except ImportError:
            raise ConfigError("run.executor ray needs Ray: pip install 'packtrain[ray]'") from None
        self.ray: Any = ray
        self.seconds = seconds
        self._policy: Literal["stop", "continue"] = policy
        self._ours = not ray.is_initialized()
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        here: dict[str, Any] = (
            {"num_cpus": workers, "object_store_memory": _STORE_BYTES, "include_dashboard": False}
            if address is None
            else {"address": address}
        )
        if self._ours:
            try:
                _reach(address)
                ray.init(**here, logging_level=logging.ERROR, log_to_driver=False, configure_logging=True)
            except (OSError, ValueError, RuntimeError) as error:
                raise ConfigError(
                    f"run.address: there is no Ray cluster at {address} ({error}); `ray start --head` starts one"
                ) from error
        if threading.current_thread() is threading.main_thread():
            for (
                number,
                handler,
            ) in handlers.items():  # Ray installs its own; they do not let a run resume
                signal.signal(number, handler)
        self._remote = ray.remote(_perform).options(num_cpus=1, max_retries=0, name="packtrain")
        try:
            self._check_machines(stores)
        except BaseException:
            self.close()
            raise

    def queue(self, function: Callable[[Task], Result], made: Callable[[Task], bool]) -> TaskQueue[Task, Result]:
        """See `Executor`."""
        return _RayQueue(self, function, made, Quarantine(self._policy))

    def limit(self, workers: int) -> None:
        """See `Executor`. Does nothing: Ray manages its machines."""

    def isolate(self) -> None:
        """See `Executor`. Does nothing, because tasks always run in other processes."""

    def close(self) -> None:
        """End Ray if it was started here, or disconnect from the cluster."""
        if self._ours:
            self.ray.shutdown()

    def room(self) -> int:
        """Maximum number of tasks that Ray gets at once."""
        return 2 * max(1, int(self.ray.cluster_resources().get("CPU", 1)))

    def begin(self, function: Callable[[Any], Any], task: object) -> Any:
        """Start a task on the cluster, and return Ray's reference."""
        return self._remote.remote(function, task, self.seconds)

    def _check_machines(self, stores: Sequence[Store]) -> None:
        """Check that every machine of the cluster can read a file that was just written here."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        name, text = f"{_CANARY}{secrets.token_hex(8)}", secrets.token_hex(16).encode()
        canary = self.ray.remote(_look)
        try:
            for store in stores:
                store.put_bytes(name, text)
            asked = {}
            for node in self.ray.nodes():
                if node["Alive"] and node["Resources"].get("CPU", 0) >= 1:
                    on = NodeAffinitySchedulingStrategy(node_id=node["NodeID"], soft=False)
                    there = canary.options(num_cpus=0, max_retries=0, scheduling_strategy=on)
                    asked[there.remote(list(stores), name, text)] = node
            for reference, node in asked.items():
                try:
                    wrong = self.ray.get(reference, timeout=_PATIENCE_SECONDS)
                except self.ray.exceptions.RayError as error:
                    if self._leaves(node["NodeID"]):
                        continue
                    last = str(error).strip().splitlines()[-1:]
                    wrong = f"cannot run packtrain ({type(error).__name__}: {' '.join(last)})"
                if wrong is not None:
                    raise ConfigError(
                        f"run.executor ray: the machine {node['NodeManagerHostname']} ({node['NodeManagerAddress']}) "
                        f"{wrong}. Every machine of the cluster needs the same version of packtrain, and `out` and "
                        "`cache` must be on a shared file system or in an object store"
                    )
        finally:
            for store in stores:
                with suppress(PacktrainError):
                    store.remove(name)

    def _leaves(self, node: str) -> bool:
        """Whether a machine is being lost; the cluster notices that a moment later."""
        for _ in range(_NOTED_SECONDS):
            if not any(one["Alive"] and one["NodeID"] == node for one in self.ray.nodes()):
                return True
            time.sleep(1)
        return False


class _RayQueue(TaskQueue[Task, Result]):
    """Tasks submitted to Ray, and tasks to submit again."""

    def __init__(
        self,
        cluster: RayExecutor,
        function: Callable[[Task], Result],
        made: Callable[[Task], bool],
        quarantine: Quarantine,
    ) -> None:
        self._cluster = cluster
        self._ray = cluster.ray
        self._function = function
        self._made = made
        self._quarantine = quarantine
        self._waiting: list[tuple[Task, int, int]] = []
        self._running: dict[Any, tuple[Task, int, int]] = {}
        """(task, number of workers that died over it, number of machines lost with it) by Ray's reference."""

    def submit(self, task: Task) -> list[Result]:
        """See `TaskQueue`."""
        results: list[Result] = []
        while len(self._running) + len(self._waiting) >= (room := self._cluster.room()):
            self._send(room)
            results += self._hear()
        if not self._made(task):
            self._waiting.append((task, 0, 0))
        self._send(room)
        return results

    def drain(self) -> Iterator[Result]:
        """See `TaskQueue`."""
        while True:
            self._send(self._cluster.room())
            if not self._running:
                self._quarantine.check()
                return
            yield from self._hear()

    def close(self) -> None:
        """See `TaskQueue`. Tasks that run are left alone: `ray.cancel` aborts this process if the task ends meanwhile
        (https://github.com/ray-project/ray/pull/54785, seen with 2.60). They are few, and end with Ray if it is ours.
        """
        self._waiting.clear()
        self._running.clear()

    def _send(self, room: int) -> None:
        while self._waiting and len(self._running) < room:
            task = self._waiting.pop()
            self._running[self._cluster.begin(self._function, task[0])] = task

    def _hear(self) -> list[Result]:
        """Return finished results. Waits for the first with a time limit, so that growth of the cluster is noticed."""
        results: list[Result] = []
        done, _ = self._ray.wait(list(self._running), num_returns=1, timeout=_PATIENCE_SECONDS)
        for reference in done:
            task, tries, lost = self._running.pop(reference)
            try:
                answer, error = self._ray.get(reference)
            except self._ray.exceptions.RayError as ending:
                if self._machine_went(ending) and lost < LOST_MACHINES:
                    self._waiting.append((task, tries, lost + 1))
                elif not self._quarantine.give_up(task, self._ending(ending), tries + 1):
                    self._waiting.append((task, tries + 1, lost))
                continue
            if error is not None:
                raise named(error, task) from error
            results.append(answer)
        return results

    def _machine_went(self, error: Exception) -> bool:
        known = self._ray.exceptions
        kinds = (known.NodeDiedError, known.LocalRayletDiedError, known.ObjectLostError, known.OwnerDiedError)
        return isinstance(error, kinds)

    def _ending(self, error: Exception) -> str:
        """Describe how a worker ended; Ray's own message is a page long."""
        known = self._ray.exceptions
        if isinstance(error, known.OutOfMemoryError):
            return "killed by Ray, because its machine was out of memory"
        if isinstance(error, known.WorkerCrashedError):
            late = (
                f", or ran longer than run.task_seconds ({duration(self._cluster.seconds)})"
                if self._cluster.seconds
                else ""
            )
            return f"it crashed, or was killed{late}"
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


def _perform(function: Callable[[Any], Any], task: Any, seconds: float | None) -> tuple[Any, Exception | None]:
    """Run a task in a Ray worker. An error is returned instead of raised, because Ray would wrap it."""
    limit_threads()
    timer = threading.Timer(seconds, os._exit, (1,)) if seconds is not None else None
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        return function(task), None
    except Exception as error:
        return None, error if isinstance(error, PacktrainError) else _plain(error)
    finally:
        if timer is not None:
            timer.cancel()


def _plain(error: Exception) -> Exception:
    """Return an error that can be unpickled in any process."""
    import pickle

    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # it cannot be pickled: keep only its text
        return TaskError(f"{type(error).__name__}: {error}")
    return error


def _look(stores: list[Store], name: str, text: bytes) -> str | None:
    """Runs on every machine: describe what is wrong with it, or return None."""
    try:
        for store in stores:
            if store.read(name) != text:
                return f"does not see {store.url}, or sees another folder of that name on its own disk"
    except Exception as error:
        return f"cannot read {store.url} ({error})"
    return None
