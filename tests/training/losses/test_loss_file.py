"""The record of losses: every step once, whatever was repeated or killed, and nothing that is no record."""

import logging
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.schemas.errors import InputError
from packtrain.training.losses.loss_file import FOLDER, LOSSES, LossRecord, LossWriter, TrainedOn, read_losses

from tests.support.examples import examples

HERE = [TrainedOn("packed", "train", "0" * 64)]


def documents(step: int, number: int, loss: float = 1.0) -> dict[str, Any]:
    """So many documents of a step."""
    ones = np.ones(number, np.int64)
    whole = dict.fromkeys(LOSSES.names, 0 * ones)
    return {**whole, "step": step * ones, "place": np.arange(number), "tokens": 2 * ones, "loss": loss * ones}


def write(out: Path, first: int, last: int, loss: float = 1.0, *, end: bool = True) -> None:
    """A start of a training that makes these steps; without an end, as a kill leaves it."""
    writer = LossWriter(out, first - 1, HERE)
    for step in range(first, last + 1):
        writer.write(documents(step, 1 + step % 3, loss))
    if end:
        writer.close()


def losses(record: LossRecord) -> dict[int, float]:
    """Step → the loss of its documents, which must be one."""
    found: dict[int, set[float]] = {}
    for row in record.table.to_pylist():
        found.setdefault(row["step"], set()).add(row["loss"])
    assert all(len(one) == 1 for one in found.values())
    return {step: one.pop() for step, one in found.items()}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write(tmp_path, 1, 5)
    record = read_losses(tmp_path)
    assert record.datasets == tuple(HERE)
    assert record.table.schema == LOSSES
    assert record.table.column("step").to_pylist() == [1, 1, 2, 2, 2, 3, 4, 4, 5, 5, 5]
    assert record.table.column("tokens").to_pylist() == [2] * 11


@examples(40)
@given(starts=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 8)), min_size=1, max_size=6))
def test_every_step_stands_once_as_it_was_made_last(
    tmp_path_factory: pytest.TempPathFactory, starts: list[tuple[int, int]]
) -> None:
    """Each start (steps made before, steps that it makes) has a loss of its own; a step is that of the last start that
    made it, unless a later one began before it."""
    out = tmp_path_factory.mktemp("starts")
    expected: dict[int, float] = {}
    for number, (before, made) in enumerate(starts):
        write(out, before + 1, before + made, float(number), end=number % 2 == 0)
        if made:
            expected = {step: loss for step, loss in expected.items() if step <= before}
            expected |= {step: float(number) for step in range(before + 1, before + made + 1)}
    if not expected:
        with pytest.raises(InputError):
            read_losses(out)
        return
    assert losses(read_losses(out)) == expected


def test_a_stream_that_was_cut_anywhere_gives_its_whole_batches(tmp_path: Path) -> None:
    write(tmp_path, 1, 4, end=False)
    (path,) = (tmp_path / FOLDER).iterdir()
    whole = path.read_bytes()
    counts = []
    for size in range(0, len(whole) + 1, 7):
        path.write_bytes(whole[:size])
        try:
            steps = [*losses(read_losses(tmp_path))]
        except InputError:  # no whole batch
            steps = []
        assert steps == [1, 2, 3, 4][: len(steps)]
        counts.append(len(steps))
    assert counts == sorted(counts)
    assert {0, 1, 3} <= {*counts}
    path.write_bytes(whole)
    assert len(losses(read_losses(tmp_path))) == 4
    write(tmp_path, 3, 6, 2.0)
    assert losses(read_losses(tmp_path)) == {1: 1.0, 2: 1.0, 3: 2.0, 4: 2.0, 5: 2.0, 6: 2.0}


@pytest.mark.parametrize("content", [b"", b"garbage", b"\xff" * 400])
def test_a_file_that_is_no_stream_is_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "after-step-0.arrows").write_bytes(content)
    with pytest.raises(InputError, match=r"after-step-0\.arrows is damaged: .* or train again"):
        read_losses(tmp_path)
    write(tmp_path, 1, 3)
    (tmp_path / FOLDER / "after-step-2.arrows").write_bytes(b"garbage")
    with pytest.raises(InputError, match=r"after-step-2\.arrows is damaged"):
        read_losses(tmp_path)


def test_a_start_that_makes_no_step_leaves_everything(tmp_path: Path) -> None:
    write(tmp_path, 1, 9)
    LossWriter(tmp_path, 4, HERE).close()
    assert [*losses(read_losses(tmp_path))] == [*range(1, 10)]


def test_a_full_disk_ends_the_record_and_not_the_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then writing fails, as on a full disk
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, before[1]))
        with caplog.at_level(logging.WARNING):
            write(tmp_path, 1, 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert caplog.text.count("no longer recorded") == 1
    steps = [*losses(read_losses(tmp_path))]
    assert 1 < len(steps) < 10
    assert steps == [*range(1, len(steps) + 1)]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("", b"", "there is no folder"),
        ("manifest.json", b"{}", "it is a dataset"),
        (".training.lock", b"", "Train again, with document_losses: true"),
        ("other", b"", "give the folder that packtrain train wrote"),
    ],
)
def test_what_has_no_record_is_said(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    out = tmp_path / "out"
    if name:
        out.mkdir()
        (out / name).write_bytes(content)
    with pytest.raises(InputError, match=said):
        read_losses(out)


@pytest.mark.parametrize("schema", [pa.schema([("x", pa.int8())]), LOSSES, LOSSES.with_metadata({"packtrain": "[1]"})])
def test_another_arrow_file_is_refused(tmp_path: Path, schema: pa.Schema) -> None:
    (tmp_path / FOLDER).mkdir()
    with pa.ipc.new_stream(tmp_path / FOLDER / "after-step-0.arrows", schema) as stream:
        stream.write_table(schema.empty_table())
    with pytest.raises(InputError, match="not a record of losses of this version"):
        read_losses(tmp_path)
