"""One driver at a time, or several with shares of the work."""

import os
import shutil
from pathlib import Path

import pytest
from packtrain.pipeline.store.local import LocalStore
from packtrain.pipeline.store.run_lock import LOCK_FILE, Activity, hold_run_lock, read_run_lock
from packtrain.schemas.errors import BusyError, OutputError, TaskError


@pytest.fixture
def out(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "out")


def test_the_second_is_told_who_the_first_is(out: LocalStore) -> None:
    with hold_run_lock(out):
        with pytest.raises(BusyError, match="Let it finish") as caught, hold_run_lock(out):
            raise AssertionError
        holder, activity = read_run_lock(out)
    assert activity is Activity.WORKING
    assert str(holder) in str(caught.value)
    assert out.url in str(caught.value)
    assert f"{os.uname().nodename}, process {os.getpid()}" in str(holder)
    assert read_run_lock(out) == (None, Activity.IDLE)


def test_shards_do_not_disturb_each_other_and_nobody_else_joins(out: LocalStore) -> None:
    one, other = (hold_run_lock(out, shard=shard) for shard in ("0/2", "1/2"))
    with one, other, pytest.raises(BusyError, match="shard 1/2"), hold_run_lock(out):
        raise AssertionError
    with hold_run_lock(out), pytest.raises(BusyError, match="--shard"), hold_run_lock(out, shard="0/2"):
        raise AssertionError


def test_a_failure_is_in_the_file_until_the_next_run_begins(out: LocalStore) -> None:
    name = "z\udcff"  # of a folder, in bytes that are not UTF-8
    for error, said in ((TaskError(name), r"z\udcff"), (KeyboardInterrupt(), "interrupted")):
        with pytest.raises(type(error)), hold_run_lock(out):
            raise error
        holder, activity = read_run_lock(out)
        assert holder is not None
        assert (holder.error, activity) == (said, Activity.IDLE)
        with hold_run_lock(out), pytest.raises(BusyError), hold_run_lock(out):
            raise AssertionError
        assert read_run_lock(out) == (None, Activity.IDLE)  # the refused driver says nothing about the run
    with pytest.raises(OutputError), hold_run_lock(out):
        raise OutputError("it belongs to another run")
    assert read_run_lock(out) == (None, Activity.IDLE)


def test_a_torn_file_names_no_process_and_a_folder_that_was_taken_away_is_not_made_again(out: LocalStore) -> None:
    out.replace_bytes(LOCK_FILE, b'{"host')
    assert read_run_lock(out) == (None, Activity.IDLE)
    with hold_run_lock(out):
        assert read_run_lock(out).activity is Activity.WORKING
        shutil.rmtree(out.root)
    assert not out.root.exists()
