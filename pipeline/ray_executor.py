"""The executor of a Ray cluster: Ray Core tasks, some beside each other on every machine.

A task is small and goes with the call, its data goes through the stores: nothing of it lies in Ray's object store,
which loses what it holds with a machine. Only twice as many tasks as the cluster has processors are in Ray's hands,
so that a million of them wait here, unmade, and a cluster that grows gets more.

Ray's own retries are off (`max_retries=0`). It would run a task that fills the memory for ever, count a machine that is
taken away like a crash, and not say over which task a worker died. All of that is decided here, as it is for `local`.
"""

import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Literal

from ..schemas.errors import ConfigError, PacktrainError, TaskError
from ..schemas.units import duration
from .executors import Quarantine, Result, Task, limit_threads, named, not_made
from .stores import Store

LOST_MACHINES = 20
"""So often may a task be on a machine that goes away."""
_CANARY = "_run/canary-"
_STORE_BYTES = 100 << 20
"""Of Ray's own object store, where Ray is started here: little goes through it."""
_PATIENCE_SECONDS = 60.0
_NOTED_SECONDS = 10
_REACH_SECONDS = 10.0
_QUIET = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_USAGE_STATS_ENABLED": "0"}


def _reach(address: str | None) -> None:
    """Whether anybody listens at `host:port`: Ray itself asks for minutes, and writes lines of its own meanwhile.

    Raises:
        OSError: nobody does.
        ValueError: the port is no number.
    """
    host, colon, port = (address or "").rpartition(":")
    if colon and "://" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_SECONDS).close()


class RayExecutor:
    """Ray Core tasks.

    Args:
        address: `auto` or `host:port` of a cluster; None starts Ray on this machine, for this run.
        workers: tasks that run at once where Ray is started here.
        stores: what every machine must reach.
        seconds: a task that runs longer ends its worker, which counts as a death.
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
        self._ray: Any = ray
        self._seconds = seconds
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
            for number, handler in handlers.items():  # Ray brings its own, which know nothing of going on later
                signal.signal(number, handler)
        self._remote = ray.remote(_perform).options(num_cpus=1, max_retries=0, name="packtrain")
        try:
            self._check_machines(stores)
        except BaseException:
            self.close()
            raise

    def start(self, function: Callable[..., object], *arguments: object) -> None:
        """See `Executor`. Ray starts its workers when there is work for them."""

    def order(self, tasks: Iterable[Task], made: Callable[[Task], bool]) -> Iterator[Task]:
        """See `Executor`."""
        return not_made(tasks, made)

    def map(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
        """See `Executor`."""
        quarantine = Quarantine(self._policy)
        waiting = iter(tasks)
        again: list[tuple[Task, int, int]] = []
        running: dict[Any, tuple[Task, int, int]] = {}
        """(task, deaths of workers over it, machines that went away with it) by Ray's reference."""
        try:
            while True:
                room = self._room()
                while len(running) < room:
                    if again:
                        task, tries, lost = again.pop()
                    else:
                        try:
                            task, tries, lost = next(waiting), 0, 0
                        except StopIteration:
                            break
                    running[self._remote.remote(function, task, self._seconds)] = (task, tries, lost)
                if not running:
                    quarantine.check()
                    return
                # Now and then, to see whether the cluster has grown.
                done, _ = self._ray.wait(list(running), num_returns=1, timeout=_PATIENCE_SECONDS)
                for reference in done:
                    task, tries, lost = running.pop(reference)
                    try:
                        answer, error = self._ray.get(reference)
                    except self._ray.exceptions.RayError as ending:
                        if self._machine_went(ending) and lost < LOST_MACHINES:
                            again.append((task, tries, lost + 1))
                        elif not quarantine.give_up(task, self._ending(ending), tries + 1):
                            again.append((task, tries + 1, lost))
                        continue
                    if error is not None:
                        raise named(error, task) from error
                    yield answer
        finally:
            for reference in running:
                with suppress(self._ray.exceptions.RayError):
                    self._ray.cancel(reference)

    def limit(self, workers: int) -> None:
        """See `Executor`. Ray counts what its machines have."""

    def isolate(self) -> None:
        """See `Executor`. They all have processes of their own."""

    def close(self) -> None:
        """End Ray, if it was begun here; a cluster is only left."""
        if self._ours:
            self._ray.shutdown()

    def _room(self) -> int:
        """Tasks to have in Ray's hands at once."""
        return 2 * max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def _machine_went(self, error: Exception) -> bool:
        known = self._ray.exceptions
        kinds = (known.NodeDiedError, known.LocalRayletDiedError, known.ObjectLostError, known.OwnerDiedError)
        return isinstance(error, kinds)

    def _ending(self, error: Exception) -> str:
        """How a worker ended, for people: Ray's own words are a page."""
        known = self._ray.exceptions
        if isinstance(error, known.OutOfMemoryError):
            return "killed by Ray, because its machine was out of memory"
        if isinstance(error, known.WorkerCrashedError):
            late = f", or ran longer than run.task_seconds ({duration(self._seconds)})" if self._seconds else ""
            return f"it crashed, or was killed{late}"
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"

    def _check_machines(self, stores: Sequence[Store]) -> None:
        """Have every machine that runs tasks read what was written here a moment ago."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        name, text = f"{_CANARY}{secrets.token_hex(8)}", secrets.token_hex(16).encode()
        canary = self._ray.remote(_look)
        try:
            for store in stores:
                store.put_bytes(name, text)
            asked = {}
            for node in self._ray.nodes():
                if node["Alive"] and node["Resources"].get("CPU", 0) >= 1:
                    on = NodeAffinitySchedulingStrategy(node_id=node["NodeID"], soft=False)
                    there = canary.options(num_cpus=0, max_retries=0, scheduling_strategy=on)
                    asked[there.remote(list(stores), name, text)] = node
            for reference, node in asked.items():
                try:
                    wrong = self._ray.get(reference, timeout=_PATIENCE_SECONDS)
                except self._ray.exceptions.RayError as error:
                    if self._leaves(node["NodeID"]):
                        continue
                    last = str(error).strip().splitlines()[-1:]
                    wrong = f"cannot run packtrain ({type(error).__name__}: {' '.join(last)})"
                if wrong is not None:
                    raise ConfigError(
                        f"run.executor ray: the machine {node['NodeManagerHostname']} ({node['NodeManagerAddress']}) "
                        f"{wrong}. Every machine of the cluster needs the same packtrain, and `out` and `cache` on a "
                        "file system that all of them share, or in an object store"
                    )
        finally:
            for store in stores:
                with suppress(PacktrainError):
                    store.remove(name)

    def _leaves(self, node: str) -> bool:
        """Whether a machine goes away just now: the cluster notes it a moment later."""
        for _ in range(_NOTED_SECONDS):
            if not any(one["Alive"] and one["NodeID"] == node for one in self._ray.nodes()):
                return True
            time.sleep(1)
        return False


def _perform(function: Callable[[Any], Any], task: Any, seconds: float | None) -> tuple[Any, Exception | None]:
    """In a worker of Ray: the result, or the error as it is, which Ray would wrap."""
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
    """An error that any other process can read."""
    import pickle

    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever an error's own pickling raises; its text goes on
        return TaskError(f"{type(error).__name__}: {error}")
    return error


def _look(stores: list[Store], name: str, text: bytes) -> str | None:
    """On every machine: what is wrong with it, or None."""
    try:
        for store in stores:
            if store.read(name) != text:
                return f"does not see {store.url}, or another folder of that name on its own disk"
    except Exception as error:
        return f"cannot read {store.url} ({error})"
    return None
