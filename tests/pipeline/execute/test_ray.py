"""Ray: the same bytes as without it, whatever becomes of its workers and machines."""

import os
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from packtrain.pipeline.execute.executor import MAX_TRIES
from packtrain.pipeline.execute.ray_cluster import RayExecutor
from packtrain.pipeline.observer import Observer
from packtrain.pipeline.run.run import run
from packtrain.schemas.errors import ConfigError, TaskError

from tests import kit
from tests.support import tasks

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster of two machines with a processor each, whose workers find the tasks."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", str(tasks.ROOT), prepend=os.pathsep)
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 100 << 20})
    made.add_node(num_cpus=1, object_store_memory=100 << 20)
    made.wait_for_nodes()
    yield made
    made.shutdown()
    patch.undo()


@pytest.fixture
def pool(cluster: Any) -> Iterator[RayExecutor]:
    executor = RayExecutor(cluster.address, 1)
    yield executor
    executor.close()


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    """Some blocks and shards."""
    texts = kit.corpus("texts", 600)
    for number in range(12):
        kit.write(tmp_path / f"in-{number:02}.jsonl", texts[number * 50 : number * 50 + 50])
    sources = [{**kit.source("texts", path=f"in-{number:02}.jsonl"), "name": f"in-{number}"} for number in range(12)]
    return kit.configure(tmp_path, *sources)


DEADLY = """
import os, signal
from pathlib import Path

def rows(row):
    deadly = Path(__file__).with_name("deadly")
    if deadly.exists() and deadly.read_text() != str(os.getpid()):
        deadly.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"text": row["text"]}
"""
"""Kills the worker that reads the first row, once, where a file holds the number of the process that must not die."""


class AtWork(Observer):
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


def packed(config: dict[str, Any], folder: Path, observer: Observer | None = None) -> bytes:
    run(config, base=folder, observer=observer)
    return (Path(config["out"]) / "manifest.json").read_bytes()


def test_a_cluster_writes_the_same_bytes_when_a_worker_and_a_machine_go(
    cluster: Any, config: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "deadly_reader.py").write_text(DEADLY)
    config["sources"][9]["format"] = "python:deadly_reader:rows"
    alone = packed(config, tmp_path)

    node = cluster.add_node(num_cpus=1, object_store_memory=100 << 20)
    cluster.wait_for_nodes()
    gone: list[Any] = []

    def take_away() -> None:
        gone.append(cluster.remove_node(node, allow_graceful=False))

    (tmp_path / "deadly").write_text(str(os.getpid()))
    run = {"executor": "ray", "address": cluster.address}
    there = {**config, "out": str(tmp_path / "there"), "cache": str(tmp_path / "other"), "run": run}
    assert packed(there, tmp_path, AtWork({"encode": take_away})) == alone
    assert not (tmp_path / "deadly").exists(), "no worker died"
    assert gone, "no machine went"


def test_a_task_that_keeps_dying_is_named(pool: RayExecutor, tmp_path: Path) -> None:
    (tmp_path / "deaths").write_text("1000")
    work = [(n, str(tmp_path / "deaths") if n == 5 else "") for n in range(10)]
    with pytest.raises(TaskError):
        list(pool.map(tasks.kill, work))
    assert int((tmp_path / "deaths").read_text()) == 1000 - MAX_TRIES
    assert list(pool.map(tasks.double, [1])) == [2]


def test_a_task_that_takes_too_long(cluster: Any) -> None:
    with closing(RayExecutor(cluster.address, 1, seconds=1.0)) as executor:
        late = rf"died {MAX_TRIES} times over 601.0: .*longer than run.task_seconds \(1 s\)"
        with pytest.raises(TaskError, match=late):
            list(executor.map(tasks.sleep, [601.0]))


def test_an_address_where_nobody_listens_is_said_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ConfigError, match="no Ray cluster"):
        RayExecutor(f"127.0.0.1:{port}", 1)
