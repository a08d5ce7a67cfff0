"""Runs that share the work (`--shard i/N`): the same bytes, in any order, with any of them missing or killed."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from packtrain.pipeline.configfile import load_config
from packtrain.pipeline.dataset.verify import verify
from packtrain.pipeline.execute import backends
from packtrain.pipeline.execute.backends import InlineExecutor
from packtrain.pipeline.execute.executor import Result, Task, TaskQueue
from packtrain.pipeline.execute.static_shards import StaticExecutor, parse_shard, shares, turns
from packtrain.pipeline.inputs import scan as sources_module
from packtrain.pipeline.observer import Observer, Silent
from packtrain.pipeline.run.driver import make_dataset
from packtrain.pipeline.run.workspace import open_workspace
from packtrain.pipeline.store.local import LocalStore
from packtrain.schemas.errors import ConfigError, OutputError

from tests.support import warm

Command = Callable[..., Any]


@pytest.fixture
def config(tmp_path: Path, tiny_tokenizer: Path, new_cache: Callable[[Path], Path]) -> dict[str, Any]:
    """Some twenty blocks and about ten shards, in several windows."""
    for number in range(20):
        rows = [{"text": f"row {number} {row} " + "and so on " * (row % 40)} for row in range(60)]
        (tmp_path / f"in-{number:02}.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    return {
        "out": str(tmp_path / "alone"),
        "cache": str(new_cache(tiny_tokenizer)),
        "tokenizer": {"path": str(tiny_tokenizer)},
        "sources": [  # one for each file, so that the files are not joined
            {"name": f"a{number}", "format": "text", "path": str(tmp_path / f"in-{number:02}.jsonl")}
            for number in range(20)
        ],
        "truncate": {"max_length": 256},
        "holdout": {"fraction": 0.1},
        "output": {"shard_bytes": "128KiB"},
        "run": {"workers": 1, "report": False},
    }


@pytest.fixture
def elsewhere(
    config: dict[str, Any], tmp_path: Path, tiny_tokenizer: Path, new_cache: Callable[[Path], Path]
) -> Callable[..., dict[str, Any]]:
    """The same run with another output, and a cache that knows nothing."""
    count = iter(range(1000))

    def make(**run: Any) -> dict[str, Any]:
        out = tmp_path / f"out-{next(count)}"
        return {**config, "out": str(out), "cache": str(new_cache(tiny_tokenizer)), "run": {**config["run"], **run}}

    return make


def drive(config: dict[str, Any], observer: Observer | None = None) -> None:
    """Go through a run, also where another one has finished it."""
    loaded, base = load_config(config)
    make_dataset(loaded, open_workspace(loaded, base, observer or Silent()))


def packed(config: dict[str, Any], **run: Any) -> dict[str, bytes]:
    """Every file of the dataset, without the report, which says when it was made."""
    drive({**config, "run": {**config["run"], **run}})
    out = Path(config["out"])
    files = (path for path in out.rglob("*") if path.is_file())
    found = {str(path.relative_to(out)): path for path in files}
    return {name: path.read_bytes() for name, path in found.items() if not name.startswith(("_run", "report."))}


@pytest.mark.slow
def test_every_executor_and_every_number_of_workers_writes_the_same_bytes(
    config: dict[str, Any], elsewhere: Callable[..., dict[str, Any]]
) -> None:
    """`test_ray.py` compares Ray with the same."""
    alone = packed(config)
    assert len([name for name in alone if "/shards/" in name]) >= 5
    assert packed(elsewhere(workers=2)) == alone
    assert packed(elsewhere(workers=3, task_seconds=60, on_dead_task="continue")) == alone
    assert packed(elsewhere(), shard="2/5") == alone  # the only one that ever came
    for order in ((0, 1, 2), (2, 1, 0)):
        shared = elsewhere()
        for index in order:
            made = packed(shared, shard=f"{index}/3", workers=1 + index % 2)
        assert made == alone
    assert verify(Path(shared["out"]), deep=True).sound


class Interrupted(Silent):
    """Stops a run after so many results."""

    def __init__(self, after: int) -> None:
        self.after = after

    def advance(self, done: int, rows: int = 0, tokens: int = 0) -> None:
        self.after -= 1
        if self.after == 0:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_shards_that_stop_anywhere(config: dict[str, Any], elsewhere: Callable[..., dict[str, Any]]) -> None:
    alone = packed(config)
    for after in (1, 7, 19, 23):
        shared = elsewhere()
        for index in (1, 0):
            one = {**shared, "run": {"workers": 1, "shard": f"{index}/2"}}
            with suppress(KeyboardInterrupt):
                drive(one, Interrupted(after))
        assert packed(shared, shard="0/2") == alone


class Counting(InlineExecutor):
    """Notes what it is given to do."""

    done: ClassVar[Counter[str]] = Counter()
    lists: ClassVar[list[object]] = []
    """An entry for each list of tasks that a run works through."""

    def queue(self, function: Callable[[Task], Result], made: Callable[[Task], bool]) -> TaskQueue[Task, Result]:
        Counting.lists.append(function)

        def noted(task: Task) -> Result:
            Counting.done[str(task)] += 1
            return function(task)

        return super().queue(noted, made)


def test_what_another_has_done_is_not_done_again(
    config: dict[str, Any], elsewhere: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "InlineExecutor", Counting)
    Counting.done = Counter()
    packed(config)
    alone = {task for task in Counting.done if "choosing" not in task}
    assert len(alone) > 25
    Counting.done, Counting.lists = Counter(), []
    shared = elsewhere()
    begin = threading.Barrier(2)

    def work(index: int) -> None:
        begin.wait()
        packed(shared, shard=f"{index}/2")

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done = {task: count for task, count in Counting.done.items() if "choosing" not in task and "checking" not in task}
    twice = [task for task, count in done.items() if count > 1]
    assert alone <= set(done)
    # In each list, a run meets the other at most once in its own share.
    assert len(twice) <= len(Counting.lists) < len(alone) / 2, twice


@pytest.mark.slow
def test_shards_at_once_and_one_that_is_killed(
    config: dict[str, Any], elsewhere: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    alone = packed(config)
    shared = elsewhere(workers=2)
    (tmp_path / "shared.yaml").write_text(yaml.safe_dump(shared))
    for _ in range(2):  # the second time over what the first has left
        drivers = [warm.Process(["run", tmp_path / "shared.yaml", "--shard", f"{index}/3"]) for index in range(3)]
        encoded = Path(shared["cache"]) / "encoded"
        end = time.monotonic() + 60
        while len(list(encoded.rglob("*.json"))) < 5:
            assert time.monotonic() < end
            time.sleep(0.01)
        drivers[1].kill()
        said = [driver.communicate(timeout=120) for driver in drivers]
        assert [drivers[0].returncode, drivers[2].returncode] == [0, 0], said
        assert (Path(shared["out"]) / "manifest.json").read_bytes() == alone["manifest.json"]
    assert packed(shared) == alone


def test_inputs_are_read_once_by_all(
    config: dict[str, Any], elsewhere: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scanned: list[str] = []
    scan = sources_module.scan_file

    def noted(source: str, label: str, path: Path, *more: Any) -> Any:
        scanned.append(path.name)
        return scan(source, label, path, *more)

    monkeypatch.setattr(sources_module, "scan_file", noted)
    monkeypatch.setattr(sources_module, "BLOCK_BYTES", 4096)  # each file has a note of its own
    time.sleep(0.2)  # until another change would have another time
    shared = elsewhere()
    shared["sources"] = [{"name": "a", "format": "text", "path": str(tmp_path / "in-*.jsonl")}]
    alone = packed(shared, shard="1/2")
    assert len(scanned) == len(set(scanned)) == 20
    del scanned[:]
    other = {**shared, "out": shared["out"] + "-again"}
    assert packed(other, shard="0/2") == alone
    assert scanned == []
    # A file that has changed is another file.
    del scanned[:]
    changed = tmp_path / "in-07.jsonl"
    changed.write_bytes(changed.read_bytes().replace(b"row 7", b"now 7"))
    with pytest.raises(OutputError):
        packed({**other, "run": {"workers": 1, "report": False}}, shard="0/2")
    assert scanned == ["in-07.jsonl"]


def test_the_first_of_them_chooses_the_plan(config: dict[str, Any], elsewhere: Callable[..., dict[str, Any]]) -> None:
    shared = elsewhere()
    with pytest.raises(KeyboardInterrupt):
        drive({**shared, "run": {"workers": 1, "shard": "0/2"}}, Interrupted(22))
    with pytest.raises(OutputError, match="seed: 42 → 43"):
        packed({**shared, "seed": 43}, shard="1/2")


def test_the_command(program: Command, tmp_path: Path) -> None:
    for index in (1, 0):
        done = program("run", "--demo", "--no-report", "--out", "out", "--shard", f"{index}/2")
        assert (done.code, done.err) == (0, "")
    with pytest.raises(ConfigError, match="count from 0"):
        load_config({"run": {"shard": "4/4"}, "out": "x", "tokenizer": {"path": "x"}, "sources": []})


# --- who does what ---


@dataclass(frozen=True)
class Window:
    layout: str


@given(st.integers(0, 60), st.integers(1, 12))
def test_everybody_does_everything_in_another_order(tasks: int, count: int) -> None:
    owners = shares(range(tasks), count)
    assert owners == sorted(owners)
    sizes = Counter(owners)
    assert max(sizes.values(), default=0) - min((sizes[owner] for owner in range(count)), default=0) <= 1
    for index in range(count):
        order = list(turns(owners, index, count))
        assert sorted(order) == list(range(tasks))
        own = [position for position in range(tasks) if owners[position] == index]
        assert order[: len(own)] == own


@given(st.lists(st.integers(1, 5), max_size=20), st.integers(1, 12))
def test_windows_stay_whole_where_there_are_enough(sizes: list[int], count: int) -> None:
    tasks = [Window(str(number)) for number, size in enumerate(sizes) for _ in range(size)]
    owners = shares(tasks, count)
    if len(sizes) >= count:
        assert len({(task.layout, owner) for task, owner in zip(tasks, owners, strict=True)}) == len(sizes)
    assert set(owners) == set(range(min(count, len(tasks))) if len(sizes) < count and len(tasks) >= count else owners)


def test_a_helper_begins_at_the_end() -> None:
    owners = shares(range(9), 3)
    assert list(turns(owners, 0, 3)) == [0, 1, 2, 5, 4, 3, 8, 7, 6]
    assert list(turns(owners, 2, 3)) == [6, 7, 8, 2, 1, 0, 5, 4, 3]


def test_what_is_made_is_asked_for_just_before(tmp_path: Path) -> None:
    made = {2}
    executor = StaticExecutor(InlineExecutor(), "0/2")
    done = executor.map(abs, range(6), made.__contains__)
    assert [next(done), next(done), next(done)] == [0, 1, 5]
    made |= {4}
    assert list(done) == [3]
    assert parse_shard("0/2") == (0, 2)
    assert LocalStore(tmp_path).names() == []
