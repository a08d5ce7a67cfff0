"""One driver at a time, whichever driver dies on whichever machine; on a disk and on an object store."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from packtrain.pipeline.store import driver_lock
from packtrain.pipeline.store.driver_lock import FOLDER, RUN, DriverLock, Lease, Pulse, driving
from packtrain.pipeline.store.local import LocalStore
from packtrain.pipeline.store.open import Store, open_store
from packtrain.schemas.errors import BusyError, OutputError, TaskError

from tests.support import warm

BEAT = 0.15


@pytest.fixture(params=["disk", "object store"])
def out(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "disk":
        return LocalStore(tmp_path / "out")
    request.getfixturevalue("faulty")
    return open_store(f"s3://mules/{tmp_path.name}", scratch=tmp_path / "scratch")


def lease_of_another_machine(**changes: Any) -> Lease:
    base = Lease(
        host="far",
        pid=77,
        since="2026-01-01T00:00:00+00:00",
        machine="another",
        began=1.0,
        beat_seconds=BEAT,
        nonce="n",
    )
    return msgspec.structs.replace(base, **changes)


class FarDriver:
    """A driver of another machine: its lease changes as long as it lives."""

    def __init__(self, out: Store, name: str, **changes: Any) -> None:
        self.lease = lease_of_another_machine(**changes)
        self.ended = threading.Event()
        self.out, self.name = out, f"{FOLDER}/{name}.json"
        out.replace_bytes(self.name, msgspec.json.encode(self.lease))
        self.thread = threading.Thread(target=self._beat)
        self.thread.start()

    def _beat(self) -> None:
        count = 0
        while not self.ended.wait(BEAT):
            count += 1
            beat = msgspec.structs.replace(self.lease, count=count)
            self.out.replace_bytes(self.name, msgspec.json.encode(beat))

    def die(self) -> None:
        """Without a word."""
        self.ended.set()
        self.thread.join()


@pytest.fixture
def far(out: Store) -> Iterator[Callable[..., FarDriver]]:
    made: list[FarDriver] = []

    def make(name: str, **changes: Any) -> FarDriver:
        made.append(FarDriver(out, name, **changes))
        return made[-1]

    yield make
    for one in made:
        one.die()


def test_the_second_is_told_who_the_first_is(out: Store) -> None:
    with DriverLock(out, beat=BEAT), pytest.raises(BusyError) as caught, DriverLock(out, beat=BEAT):
        raise AssertionError
    assert isinstance(caught.value, OutputError)
    assert caught.value.exit_code == 2
    assert str(os.uname().nodename) in str(caught.value)
    assert out.url in str(caught.value)
    assert "run.wait=" in str(caught.value)
    with DriverLock(out, beat=BEAT) as third:
        assert not third.waited
        assert out.names(FOLDER) == [RUN]
    assert out.names(FOLDER) == []


def test_it_waits_where_asked(out: Store) -> None:
    first = DriverLock(out, beat=BEAT)
    first.__enter__()
    threading.Timer(0.2, first.__exit__, (None, None, None)).start()
    with DriverLock(out, wait=20, beat=BEAT) as second:
        assert second.waited
    with DriverLock(out, beat=BEAT):
        began = time.monotonic()
        with pytest.raises(BusyError), DriverLock(out, wait=0.3, beat=BEAT):
            raise AssertionError
        assert time.monotonic() - began >= 0.3


def test_one_of_many_at_once(out: Store) -> None:
    """As many as there are, one works; and of those that wait, one after another."""
    inside, most, entered, refused = 0, 0, 0, 0
    guard, begin = threading.Lock(), threading.Barrier(6)

    def work(wait: float) -> None:
        nonlocal inside, most, entered, refused
        begin.wait()
        try:
            with DriverLock(out, wait=wait, beat=BEAT):
                with guard:
                    inside, entered = inside + 1, entered + 1
                    most = max(most, inside)
                time.sleep(0.05)
                with guard:
                    inside -= 1
        except BusyError:
            refused += 1

    for wait in (0.0, 60.0):
        threads = [threading.Thread(target=work, args=(wait,)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert most == 1
        assert entered + refused == 6
        assert entered == 6 if wait else entered >= 1
        entered = refused = 0


def test_a_driver_of_another_machine_that_lives(out: Store, far: Callable[..., FarDriver]) -> None:
    far("run", beat_seconds=60.0)  # it beats far more often: a pause of this busy process is not its death
    with pytest.raises(BusyError), DriverLock(out, beat=BEAT):
        raise AssertionError


def test_a_driver_of_another_machine_that_died(out: Store, far: Callable[..., FarDriver]) -> None:
    driver = far("run")
    time.sleep(3 * BEAT)
    driver.die()
    began = time.monotonic()
    with DriverLock(out, beat=BEAT):
        # Judged by silence alone, in this reader's own time.
        assert time.monotonic() - began >= driver_lock.SILENT_BEATS * BEAT
        assert str(os.getpid()).encode() in (out.read(RUN) or b"")


def test_a_driver_that_slept_leaves_the_lease_to_the_one_that_replaced_it(out: Store) -> None:
    with DriverLock(out, beat=600):
        other = msgspec.json.encode(lease_of_another_machine())
        out.replace_bytes(RUN, other)
    assert out.read(RUN) == other


def test_shards_disturb_each_other_not_and_nobody_else_joins(out: Store) -> None:
    refused = pytest.raises(BusyError, match="shard 0/2")
    one, other = (DriverLock(out, shard=shard, beat=BEAT) for shard in ("0/2", "1/2"))
    with one, other, refused, DriverLock(out, beat=BEAT):
        raise AssertionError
    assert out.names(FOLDER) == []
    with DriverLock(out, beat=BEAT):
        refused = pytest.raises(BusyError, match="--shard")
        with refused, DriverLock(out, shard="0/2", beat=BEAT):
            raise AssertionError
    with DriverLock(out, shard="0/2", beat=BEAT) as shard:
        assert not shard.waited


def test_dead_shards_are_cleared_away(out: Store, far: Callable[..., FarDriver]) -> None:
    far("shard-000003", shard="3/4").die()
    with DriverLock(out, beat=BEAT):
        assert out.names(FOLDER) == [RUN]


def test_a_process_that_was_killed_on_this_machine_is_known_to_be_gone(tmp_path: Path) -> None:
    out = LocalStore(tmp_path / "out")
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom packtrain.pipeline.store.driver_lock import DriverLock\n"
        "from packtrain.pipeline.store.local import LocalStore\n"
        f"with DriverLock(LocalStore(Path({str(out.root)!r}))):\n    print('here', flush=True)\n    time.sleep(60)\n"
    )
    driver = warm.Process(["python", "-c", script])
    assert driver.stdout.readline() == "here\n"
    with pytest.raises(BusyError, match=f"process {driver.pid}, "), DriverLock(out):
        raise AssertionError
    driver.kill()
    # Even before anybody has taken note of its end. Its silence alone would take longer to show than this waits.
    wait = 5.0
    assert wait < driver_lock.SILENT_BEATS * driver_lock.BEAT_SECONDS
    with DriverLock(out, wait=wait):
        pass
    driver.wait()


def test_a_process_number_that_is_used_again_is_not_the_driver(tmp_path: Path) -> None:
    out = LocalStore(tmp_path)
    mine = DriverLock(out).lease
    for changes, alive in (({}, True), ({"began": mine.began - 100}, False), ({"pid": 2**22 + 1}, False)):
        assert Pulse().look(msgspec.json.encode(msgspec.structs.replace(mine, **changes))) is alive


def test_what_cannot_be_read_counts_as_alive_while_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_lock, "BEAT_SECONDS", BEAT)
    pulse = Pulse()
    assert pulse.look(b"{torn") is None
    assert pulse.look(b"{torn again") is True
    time.sleep(driver_lock.SILENT_BEATS * BEAT + BEAT)
    assert pulse.look(b"{torn again") is False


def test_the_lease_is_not_made_again_in_a_folder_that_was_taken_away(tmp_path: Path) -> None:
    import shutil

    out = LocalStore(tmp_path / "out")
    with DriverLock(out, beat=BEAT):
        shutil.rmtree(out.root)
        time.sleep(4 * BEAT)
        assert not out.root.exists()
    assert not out.root.exists()


def test_a_failure_is_in_the_lease(out: Store) -> None:
    with pytest.raises(TaskError), driving(out):
        raise TaskError("the disk ran away")
    assert b"the disk ran away" in (out.read(RUN) or b"")
    with driving(out):
        assert b'"error":null' in (out.read(RUN) or b"")
    assert out.names(FOLDER) == []
    with pytest.raises(KeyboardInterrupt), driving(out):
        raise KeyboardInterrupt
    assert b'"interrupted"' in (out.read(RUN) or b"")
    with driving(out), pytest.raises(BusyError), driving(out):
        raise AssertionError
    assert out.names(FOLDER) == []  # the refused driver says nothing about the run
