"""The pool: every task's result, whatever happens to the workers."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from packtrain.pipeline.execute.executor import MAX_TRIES, perform
from packtrain.pipeline.execute.pool import Pool
from packtrain.schemas.errors import RowRejectedError, StoppedTemplateError, TaskError, TemplateError

from tests import kit
from tests.support import tasks


@pytest.fixture
def pool() -> Iterator[Pool]:
    executor = Pool(2)
    yield executor
    executor.close()


def test_every_result_comes_once(pool: Pool) -> None:
    assert sorted(pool.map(tasks.double, range(200))) == [2 * n for n in range(200)]
    assert list(pool.map(tasks.double, [])) == []
    assert list(pool.map(tasks.double, iter([4]))) == [8]


def test_a_task_that_dies_now_and_then_succeeds(pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "deaths").write_text(str(MAX_TRIES - 1))
    work = [(n, str(tmp_path / "deaths") if n == 5 else "") for n in range(20)]
    assert sorted(pool.map(tasks.kill, work)) == list(range(20))
    assert (tmp_path / "deaths").read_text() == "0"


def test_a_task_that_keeps_dying_is_named_and_the_others_survive(pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "deaths").write_text("1000")
    work = [(n, str(tmp_path / "deaths") if n == 5 else "") for n in range(10)]
    done: list[int] = []
    said = rf"a worker died {MAX_TRIES} times over \(5, '.*deaths'\): killed by SIGKILL.*memory runs out.*run.workers=1"
    with pytest.raises(TaskError, match=said):
        done.extend(pool.map(tasks.kill, work))
    assert int((tmp_path / "deaths").read_text()) == 1000 - MAX_TRIES
    # What ran beside it was run again, and the pool goes on.
    assert list(pool.map(tasks.double, [1])) == [2]
    assert 5 not in done


@pytest.mark.slow
def test_a_task_that_takes_too_long_is_killed_and_its_neighbours_are_not(tmp_path: Path) -> None:
    executor = Pool(2, seconds=2)
    said = rf"died {MAX_TRIES} times over .*slow'.*: it ran longer than run.task_seconds \(2.0 s\)"
    done: list[str] = []
    with pytest.raises(TaskError, match=said):
        done.extend(
            executor.map(tasks.linger_over, [(str(tmp_path / name), name == "slow") for name in ("slow", *"abc")])
        )
    assert sorted(done) == ["a", "b", "c"]
    assert sorted(executor.map(tasks.double, range(50))) == [2 * n for n in range(50)]
    executor.close()


NESTED = "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
"""Printing it, or comparing it with another one, is one instruction without an end."""


@pytest.mark.parametrize("source", ["{% for i in range(99999) %}" * 4 + "{% endfor %}" * 4, NESTED + "{{ ns.x }}"])
def test_a_template_that_takes_too_long_is_killed_and_its_row_is_named(pool: Pool, source: str) -> None:
    with pytest.raises(
        StoppedTemplateError, match=r"^theirs\.jsonl, row 8: the chat template was stopped: .* too long"
    ):
        list(pool.map(perform, [tasks.Rendering(source, seconds=0.5)]))
    assert list(pool.map(tasks.double, [1])) == [2]


def test_the_time_between_renderings_is_not_counted(pool: Pool) -> None:
    work = [tasks.Rendering("{{ messages[0].content }}", seconds=0.5, afterwards=0.7)]
    assert list(pool.map(perform, work)) == ["def"]


def test_a_map_that_is_left_early_leaves_nothing_behind(pool: Pool) -> None:
    results = pool.map(tasks.double, range(100))
    next(results)
    results.close()
    assert sorted(pool.map(tasks.double, range(5))) == [0, 2, 4, 6, 8]


def test_a_worker_killed_while_idle_costs_nothing(pool: Pool) -> None:
    (victim, *_) = pool.map(tasks.process, [0])
    os.kill(victim, signal.SIGKILL)
    assert sorted(pool.map(tasks.double, range(50))) == [2 * n for n in range(50)]


def test_an_unexpected_error_names_its_task(pool: Pool) -> None:
    with pytest.raises(TaskError, match=r"^full: MemoryError: full\.") as caught:
        list(pool.map(tasks.fail, [None] * 5 + [MemoryError("full")] + [None] * 20))
    assert isinstance(caught.value.__cause__, MemoryError)


@pytest.mark.parametrize("error", [TemplateError("fix it"), RowRejectedError("reason", "detail")])
def test_an_error_of_a_task_is_raised_here(pool: Pool, error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        list(pool.map(tasks.fail, [None] * 5 + [error] + [None] * 20))
    assert (str(caught.value), caught.value.args) == (str(error), error.args)
    assert list(pool.map(tasks.double, [1])) == [2]


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def test_workers_end_with_a_driver_that_is_killed(tmp_path: Path) -> None:
    marks = [tmp_path / "one", tmp_path / "two"]
    script = tmp_path / "driver.py"
    script.write_text(
        "from packtrain.pipeline.execute.pool import Pool\nfrom tests.support import tasks\n"
        f"list(Pool(2).map(tasks.linger, {[str(mark) for mark in marks]}))\n"
    )
    driver = subprocess.Popen([sys.executable, str(script)], env=os.environ | {"PYTHONPATH": str(tasks.ROOT)})
    wait_for(lambda: all(mark.exists() for mark in marks))
    family = psutil.Process(driver.pid).children(recursive=True)
    assert len(alive(family)) >= 3  # two workers and their fork server
    driver.kill()
    driver.wait()
    wait_for(lambda: not alive(family))


def wait_for(condition: Any, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def test_a_script_without_a_guard_can_run_and_its_workers_import_nothing_heavy(tmp_path: Path) -> None:
    """After a real run, and in the very workers that did it."""
    config = kit.configure(tmp_path, "chats", keep_untrained=True, mask="all", run={"workers": 2})
    script = tmp_path / "script.py"
    script.write_text(f"""
import packtrain
from packtrain.pipeline.execute.pool import Pool
from tests.support import tasks

seen = set()
close = Pool.close
def look(self):
    if self._pool:
        for names in self.map(tasks.modules, range(8)):
            seen.update(names)
    close(self)
Pool.close = look
packtrain.run({config!r}, quiet=True)
print(*sorted(seen))
""")
    # What the run warns of belongs to its data, not to the processes that this test looks at.
    environment = os.environ | {"PYTHONPATH": str(tasks.ROOT), "PYTHONWARNINGS": "ignore::UserWarning"}
    command = [sys.executable, str(script)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)
    seen = set(done.stdout.split())
    assert {"packtrain.stages.tokenize.encode", "packtrain.pipeline.pack.shard", "fastokens"} <= seen, (
        "the workers did not work"
    )
    heavy = {"torch", "transformers", "datasets", "pandas", "polars", "typer", "rich"}
    assert heavy & seen == set()
