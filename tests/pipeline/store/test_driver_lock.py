"""One driver at a time, whichever driver dies on whichever machine; on a disk and on an object store."""

import os
import shutil
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from packtrain.pipeline.store import driver_lock
from packtrain.pipeline.store.driver_lock import FOLDER, RUN, DriverLock, Lease, Leases
from packtrain.pipeline.store.local import LocalStore
from packtrain.pipeline.store.open_store import Store, open_store
from packtrain.schemas.errors import BusyError, TaskError

BEAT = 0.15
FAR = Lease(host="far", pid=7, since="2026-01-01", machine="another", began=1.0, beat_seconds=BEAT, nonce="n")


@pytest.fixture(params=["disk", "object store"])
def out(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "disk":
        return LocalStore(tmp_path / "out")
    request.getfixturevalue("faulty")
    return open_store(f"s3://mules/{tmp_path.name}", scratch=tmp_path / "scratch")


def write(out: Store, name: str = RUN, **changes: Any) -> bytes:
    """Write the lease of a driver of another machine."""
    data = msgspec.json.encode(msgspec.structs.replace(FAR, **changes))
    out.replace_bytes(name, data)
    return data


def test_the_second_is_told_who_the_first_is(out: Store) -> None:
    with DriverLock(out, beat=BEAT):
        assert out.names(FOLDER) == [RUN]
        with pytest.raises(BusyError, match="Let it finish") as caught, DriverLock(out, beat=BEAT):
            raise AssertionError
    assert caught.value.exit_code == 2
    assert os.uname().nodename in str(caught.value)
    assert out.url in str(caught.value)
    assert out.names(FOLDER) == []


def test_one_of_many_at_once(tmp_path: Path) -> None:
    """As many as there are, one works, and the others are refused."""
    out, begin, end = LocalStore(tmp_path), threading.Barrier(6), threading.Barrier(6)
    entered = list[int]()

    def work(number: int) -> None:
        begin.wait()
        with suppress(BusyError), DriverLock(out, beat=BEAT):
            entered.append(number)
            end.wait()
            return
        end.wait()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(entered) == 1


def test_drivers_of_other_machines_live_while_their_leases_change(tmp_path: Path) -> None:
    out, leases = LocalStore(tmp_path), Leases(LocalStore(tmp_path))

    def lives() -> bool | None:
        return leases.judge()[RUN][1]

    write(out, count=1)
    assert lives() is None
    write(out, count=2)
    assert lives() is True
    time.sleep((driver_lock.SILENT_BEATS + 1) * BEAT)
    assert lives() is False
    out.replace_bytes(RUN, b"{torn")
    assert leases.judge() == {RUN: (None, False)}
    with DriverLock(out, beat=BEAT):
        assert str(os.getpid()).encode() in (out.read(RUN) or b"")


def test_a_process_number_that_is_used_again_is_not_the_driver(tmp_path: Path) -> None:
    out = LocalStore(tmp_path)
    mine = DriverLock(out).lease
    for changes, alive in (({}, True), ({"began": mine.began - 100}, False), ({"pid": 2**22 + 1}, False)):
        out.replace_bytes(RUN, msgspec.json.encode(msgspec.structs.replace(mine, **changes)))
        assert Leases(out).judge()[RUN][1] is alive


def test_a_driver_that_slept_leaves_the_lease_to_the_one_that_replaced_it(tmp_path: Path) -> None:
    out = LocalStore(tmp_path)
    with DriverLock(out, beat=600):
        other = write(out)
    assert out.read(RUN) == other


def test_shards_do_not_disturb_each_other_and_nobody_else_joins(out: Store) -> None:
    write(out, f"{FOLDER}/shard-000003.json", error="it failed")
    one, other = (DriverLock(out, shard=shard, beat=BEAT) for shard in ("0/2", "1/2"))
    with one, other, pytest.raises(BusyError, match="shard 0/2"), DriverLock(out, beat=BEAT):
        raise AssertionError
    with DriverLock(out, beat=BEAT):
        assert out.names(FOLDER) == [RUN], "dead shards are cleared away"
        with pytest.raises(BusyError, match="--shard"), DriverLock(out, shard="0/2", beat=BEAT):
            raise AssertionError


def test_the_lease_is_not_made_again_in_a_folder_that_was_taken_away(tmp_path: Path) -> None:
    out = LocalStore(tmp_path / "out")
    with DriverLock(out, beat=BEAT):
        shutil.rmtree(out.root)
        time.sleep(4 * BEAT)
    assert not out.root.exists()


def test_a_failure_is_in_the_lease(tmp_path: Path) -> None:
    out = LocalStore(tmp_path)
    with pytest.raises(TaskError), DriverLock(out):
        raise TaskError("the disk ran away")
    assert b"the disk ran away" in (out.read(RUN) or b"")
    with DriverLock(out):
        assert b'"error":null' in (out.read(RUN) or b"")
    assert out.names(FOLDER) == []
    with pytest.raises(KeyboardInterrupt), DriverLock(out):
        raise KeyboardInterrupt
    assert b'"interrupted"' in (out.read(RUN) or b"")
    with DriverLock(out), pytest.raises(BusyError), DriverLock(out):
        raise AssertionError
    assert out.names(FOLDER) == []  # the refused driver says nothing about the run
