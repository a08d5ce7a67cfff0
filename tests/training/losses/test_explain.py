"""Steps that stand out, documents in their order, and datasets that are not what was trained on."""

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from packtrain.schemas.errors import ConfigError, InputError
from packtrain.training.losses.explain import explain_step, list_steps
from packtrain.training.losses.loss_file import LOSSES, LossRecord, TrainedOn
from packtrain.training.losses.sources import DocumentSources
from packtrain.training.rows import PackedRows


def record(steps: dict[int, list[tuple[int, float]]], packed: Path | None = None) -> LossRecord:
    """Of (trained tokens, mean loss) of each document; the documents are those of the dataset's first row on."""
    rows = PackedRows(packed) if packed is not None else None
    ids = [] if rows is None else [(n, at, id) for n in range(len(rows)) for at, id in enumerate(rows.row(n).doc_ids)]
    found = []
    for step, documents in steps.items():
        for number, (tokens, loss) in enumerate(documents):
            row, place, doc_id = ids[number] if ids else (0, number, number)
            values = (step, 0, 0, row, place, int(doc_id), tokens, loss * tokens)
            found.append(dict(zip(LOSSES.names, values, strict=True)))
    where = [] if rows is None else [TrainedOn(str(packed), "train", rows.manifest.hash)]
    return LossRecord(Path("out"), tuple(where), pa.Table.from_pylist(found, LOSSES))


def test_the_step_that_rises_most_comes_first() -> None:
    """A falling loss, in which the first step is the highest, and one step rises."""
    means = {step: 8 - 0.1 * step for step in range(1, 41)}
    means[30] += 2  # to 7; the median of the ten before is 5.55
    steps = list_steps(record({step: [(10, mean), (30, mean)] for step, mean in means.items()}))
    assert steps[0].step == 30
    assert steps[0].loss == pytest.approx(7.0)
    assert steps[0].rise == pytest.approx(7 - 5.55)
    assert (steps[0].documents, steps[0].tokens) == (2, 40)
    assert (steps[-1].step, steps[-1].rise) == (1, None)  # it has none before it
    assert [one.step for one in steps if one.rise is None] == [1]
    assert sorted(one.step for one in steps) == [*range(1, 41)]


def test_a_mean_is_over_tokens_and_no_number_comes_first() -> None:
    nan = float("nan")
    steps = list_steps(record({1: [(4, 2.0)], 2: [(1, 9.0), (3, 1.0)], 3: [(4, nan), (4, 1.0)], 4: [(4, 2.0)]}))
    assert [one.step for one in steps] == [3, 2, 4, 1]
    assert (steps[1].loss, steps[1].highest) == (3.0, 9.0)
    assert [one.rise for one in steps[1:]] == [1.0, -0.5, None]  # what is no number is no neighbour
    assert list_steps(record({})) == []


def test_documents_of_a_step(folder: Path) -> None:
    found = record({1: [(1, 9.0)], 2: [(5, 1.0), (1, 7.0), (10, 3.0)]}, folder)
    step, documents = explain_step(found, 2)
    assert [(one.tokens, one.loss) for one in documents] == [(1, 7.0), (10, 3.0), (5, 1.0)]
    assert sum(one.share for one in documents) == pytest.approx(1)
    assert documents[0].share == pytest.approx(7 / 42)
    assert step.loss == 42 / 16
    _, by_share = explain_step(found, 2, by="share", top=2)
    assert [one.loss for one in by_share] == [3.0, 7.0]
    for one in documents:
        doc_ids = PackedRows(folder).row(one.row).doc_ids
        assert doc_ids[one.place] == one.doc_id
        assert shlex.split(one.inspect) == ["packtrain", "inspect", str(folder), "--id", one.id]
        assert one.id == f"{one.source}/{one.file}:{one.line}"
    with pytest.raises(InputError, match=r"no losses of step 3; choose one of steps 1 to 2"):
        explain_step(found, 3)
    with pytest.raises(ConfigError, match="choose one of loss, share"):
        explain_step(found, 2, by="tokens")


def test_steps_that_are_missing_are_said(folder: Path) -> None:
    found = record({step: [(1, 1.0)] for step in (1, 2, 3, 7, 11, 12)}, folder)
    with pytest.raises(InputError, match="choose one of steps 1 to 3, 7, 11 to 12"):
        explain_step(found, 4)
    with pytest.raises(InputError, match="none: the training ended before its first logging step"):
        explain_step(record({}), 1)


def test_a_dataset_that_was_moved_or_changed(folder: Path, tmp_path: Path, make_packed: Callable[..., Path]) -> None:
    moved, there = tmp_path / "moved", tmp_path / "there"
    shutil.copytree(folder, there)
    found = record({1: [(1, 2.0)]}, there)
    there.rename(moved)
    with pytest.raises(InputError, match=r"is not there any more; name its folder with --data"):
        explain_step(found, 1)
    other = make_packed("another", 20)
    with pytest.raises(InputError, match="none of --data is it"):
        explain_step(found, 1, [str(other)])
    _, documents = explain_step(found, 1, [str(other), str(moved)])
    assert documents[0].dataset == str(moved)
    shutil.copytree(other, there)
    with pytest.raises(InputError, match="has changed since the training"):
        explain_step(found, 1)
    (there / "manifest.json").write_text("{")
    with pytest.raises(InputError, match="cannot be opened"):
        explain_step(found, 1)
    far = LossRecord(found.out, (TrainedOn("s3://bucket/packed", "train", "0"),), found.table)
    with pytest.raises(InputError, match="--data s3://bucket/packed"):
        explain_step(far, 1)


def test_sources_are_those_of_the_table(two_sources: Path, folder: Path) -> None:
    import pyarrow.parquet as pq

    sources = DocumentSources([PackedRows(folder), PackedRows(two_sources), PackedRows(two_sources, "holdout")])
    assert sources.names == ("text", "chats", "texts")
    checked: list[Any] = []
    for number, where in enumerate((folder, two_sources, two_sources)):
        table = pq.read_table(where / "documents.parquet", columns=["doc_id", "source"])
        ids = np.random.default_rng(0).permutation(len(table))
        given = table.column("doc_id").to_numpy()[ids]
        expected = [table.column("source")[int(one)].as_py() for one in ids]
        assert [sources.names[one] for one in sources.of(number, given)] == expected
        checked += expected
    assert {*checked} == {"text", "chats", "texts"}
    sums = sources.sums(np.array([1, 0, 1]), np.array([1.0, 2.0, 4.0]), np.array([3, 1, 1]))
    assert sums.tolist() == [[2, 1], [5, 4], [0, 0]]


@pytest.mark.parametrize(
    ("column", "value", "what"),
    [("dataset", 7, "names a dataset"), ("dataset", -1, "names a dataset"), ("doc_id", 2**62, "has document")],
)
def test_a_record_that_does_not_fit_its_data_is_refused(folder: Path, column: str, value: int, what: str) -> None:
    whole = record({1: [(5, 1.0)]}, folder)
    rows = [one | {column: value} for one in whole.table.to_pylist()]
    with pytest.raises(InputError, match=f"losses is damaged: step 1 {what}"):
        explain_step(LossRecord(whole.out, whole.datasets, pa.Table.from_pylist(rows, LOSSES)), 1)
