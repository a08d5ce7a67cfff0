"""One driver at a time, or several with shares of the work."""

import os
import shutil
from pathlib import Path

import pytest
from packtrain.pipeline.store.lease import NAME, leased, look
from packtrain.pipeline.store.local import LocalStore
from packtrain.schemas.errors import BusyError, OutputError, TaskError


@pytest.fixture
def out(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "out")


def test_the_second_is_told_who_the_first_is(out: LocalStore) -> None:
    with leased(out):
        with pytest.raises(BusyError, match="Let it finish") as caught, leased(out):
            raise AssertionError
        lease, working = look(out)
    assert working
    assert str(lease) in str(caught.value)
    assert out.url in str(caught.value)
    assert f"{os.uname().nodename}, process {os.getpid()}" in str(lease)
    assert look(out) == (None, False)


def test_shards_do_not_disturb_each_other_and_nobody_else_joins(out: LocalStore) -> None:
    one, other = (leased(out, shard=shard) for shard in ("0/2", "1/2"))
    with one, other, pytest.raises(BusyError, match="shard 1/2"), leased(out):
        raise AssertionError
    with leased(out), pytest.raises(BusyError, match="--shard"), leased(out, shard="0/2"):
        raise AssertionError


def test_a_failure_is_in_the_lease_until_the_next_driver_begins(out: LocalStore) -> None:
    name = "z\udcff"  # of a folder, in bytes that are not UTF-8
    for error, said in ((TaskError(name), r"z\udcff"), (KeyboardInterrupt(), "interrupted")):
        with pytest.raises(type(error)), leased(out):
            raise error
        lease, working = look(out)
        assert lease is not None
        assert (lease.error, working) == (said, False)
        with leased(out), pytest.raises(BusyError), leased(out):
            raise AssertionError
        assert look(out) == (None, False)  # the refused driver says nothing about the run
    with pytest.raises(OutputError), leased(out):
        raise OutputError("it belongs to another run")
    assert look(out) == (None, False)


def test_a_torn_lease_is_nobody_and_a_folder_that_was_taken_away_is_not_made_again(out: LocalStore) -> None:
    out.replace_bytes(NAME, b'{"host')
    assert look(out) == (None, False)
    with leased(out):
        assert look(out)[1]
        shutil.rmtree(out.root)
    assert not out.root.exists()
