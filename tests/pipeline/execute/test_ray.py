"""Ray: the same bytes as without it, whatever becomes of its workers and machines."""

import importlib.util
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from packtrain.pipeline.execute.executor import TRIES
from packtrain.pipeline.execute.ray_cluster import RayExecutor
from packtrain.pipeline.observer import Silent
from packtrain.pipeline.run.run import run
from packtrain.schemas.errors import ConfigError, TaskError

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]

TASKS = '''
import os, signal, time
from pathlib import Path

def double(number):
    return 2 * number

def place(_):
    import ray
    time.sleep(0.2)
    return ray.get_runtime_context().get_node_id()

def kill(task):
    """Dies as often as the file says, which counts down."""
    number, deaths = task
    if deaths:
        left = int(Path(deaths).read_text())
        if left:
            Path(deaths).write_text(str(left - 1))
            os.kill(os.getpid(), signal.SIGKILL)
    return number

def linger(seconds):
    time.sleep(seconds)
    return seconds
'''


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A module of tasks, where workers find it, too: they have the environment in which the cluster was begun."""
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "ray_tasks.py").write_text(TASKS)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(folder) + (f":{before}" if before else "")
    sys.path.insert(0, str(folder))
    spec = importlib.util.find_spec("ray_tasks")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["ray_tasks"] = module
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(folder))
    del sys.modules["ray_tasks"]
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


@pytest.fixture(scope="module")
def cluster(tasks: Any) -> Iterator[Any]:
    """A cluster of two machines with a processor each, besides a head that has none."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 100 << 20})
    for _ in range(2):
        made.add_node(num_cpus=1, object_store_memory=100 << 20)
    made.wait_for_nodes()
    yield made
    made.shutdown()


@pytest.fixture
def pool(cluster: Any) -> Iterator[RayExecutor]:
    executor = RayExecutor(cluster.address, 1)
    yield executor
    executor.close()


@pytest.fixture
def config(tmp_path: Path, tiny_tokenizer: Path, new_cache: Callable[[], Path]) -> dict[str, Any]:
    """Some forty blocks and ten shards."""
    for number in range(40):
        rows = [{"text": f"row {number} {row} " + "and so on " * (row % 50)} for row in range(120)]
        (tmp_path / f"in-{number:02}.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    return {
        "out": str(tmp_path / "local"),
        "cache": str(new_cache()),
        "tokenizer": {"path": str(tiny_tokenizer)},
        "sources": [{"name": "a", "format": "text", "path": str(tmp_path / "in-*.jsonl")}],
        "truncate": {"max_length": 256},
        "output": {"shard_bytes": "256KiB"},
        "run": {"workers": 1, "report": False},
    }


DEADLY = """
import os, signal
from pathlib import Path

def rows(row):
    deadly = Path(__file__).with_name("deadly")
    if row["text"].startswith("row 20 60 ") and deadly.exists():
        deadly.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"text": row["text"]}
"""
"""Kills the worker that reads one of the rows, once, where a file says so."""


class AtWork(Silent):
    """Does something in each of some stages, after three tasks of it are done."""

    def __init__(self, then: dict[str, Callable[[], None]]) -> None:
        self.then = then
        self.done: Counter[str] = Counter()
        self.now = ""

    def begin(self, stage: str, total: int, unit: str) -> None:
        self.now = stage

    def advance(self, done: int, rows: int = 0, tokens: int = 0) -> None:
        self.done[self.now] += 1
        if self.done[self.now] == 3 and self.now in self.then:
            self.then[self.now]()


def packed(config: dict[str, Any], folder: Path, observer: Silent | None = None) -> bytes:
    run(config, base=folder, observer=observer)
    return (Path(config["out"]) / "manifest.json").read_bytes()


def test_a_cluster_writes_the_same_bytes_when_a_worker_and_machines_go(
    cluster: Any, config: dict[str, Any], tmp_path: Path, tiny_tokenizer: Path, new_cache: Callable[[], Path]
) -> None:
    (tmp_path / "deadly_reader.py").write_text(DEADLY)
    config["sources"][0]["format"] = "python:deadly_reader:rows"
    alone = packed(config, tmp_path)

    nodes = [cluster.add_node(num_cpus=1, object_store_memory=100 << 20) for _ in range(2)]
    cluster.wait_for_nodes()

    def take_away() -> None:
        cluster.remove_node(nodes.pop(), allow_graceful=False)

    (tmp_path / "deadly").touch()
    run = {"executor": "ray", "address": cluster.address}
    there = {**config, "out": str(tmp_path / "there"), "cache": str(new_cache()), "run": run}
    assert packed(there, tmp_path, AtWork({"encode": take_away, "pack": take_away})) == alone
    assert not (tmp_path / "deadly").exists(), "no worker died"
    assert nodes == []


def test_tasks_run_on_every_machine(tasks: Any, pool: RayExecutor) -> None:
    assert len(set(pool.map(tasks.place, range(12)))) == 2
    assert sorted(pool.map(tasks.double, range(100))) == [2 * n for n in range(100)]
    assert list(pool.map(tasks.double, [])) == []


def test_closed_while_tasks_run(tasks: Any, pool: RayExecutor) -> None:
    """Ray's own way to take tasks back ends the process about once in sixty times."""
    for _ in range(100):
        results = pool.map(tasks.double, range(8))
        next(results)
        results.close()
    assert sorted(pool.map(tasks.double, range(4))) == [0, 2, 4, 6]


def test_a_task_that_keeps_dying_is_named(tasks: Any, pool: RayExecutor, tmp_path: Path) -> None:
    (tmp_path / "deaths").write_text("1000")
    work = [(n, str(tmp_path / "deaths") if n == 5 else "") for n in range(10)]
    with pytest.raises(TaskError):
        list(pool.map(tasks.kill, work))
    assert int((tmp_path / "deaths").read_text()) == 1000 - TRIES
    assert list(pool.map(tasks.double, [1])) == [2]


def test_a_task_that_takes_too_long(tasks: Any, cluster: Any) -> None:
    with closing(RayExecutor(cluster.address, 1, seconds=1.0)) as executor:
        late = rf"died {TRIES} times over 601.0: .*longer than run.task_seconds \(1\.0 s\)"
        with pytest.raises(TaskError, match=late):
            list(executor.map(tasks.linger, [601.0]))


def test_an_address_where_nobody_listens_is_said_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ConfigError, match="no Ray cluster"):
        RayExecutor(f"127.0.0.1:{port}", 1)


def test_signals_stay_ours(cluster: Any) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    RayExecutor(cluster.address, 1).close()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
