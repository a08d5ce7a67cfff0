"""Whose loss it is: the documents of a step by their losses, and the steps whose loss rises above those before.

Needs no torch: it reads what the training recorded, and the ids in the datasets' tables of documents.
"""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...schemas.config.hints import choice
from ...schemas.errors import InputError, PacktrainError
from ..files import open_files
from ..rows import PackedRows, document_names, read_manifest
from .loss_file import FOLDER, LOSSES, LossRecord, TrainedOn

BEFORE = 10
"""Number of steps before it with which a step is compared."""


class RankBy(StrEnum):
    """What documents are ordered by, the highest first."""

    LOSS = "loss"
    """The mean over a document's trained tokens."""
    SHARE = "share"
    """Their sum, as a share of the step's."""


@dataclass(frozen=True, slots=True)
class StepLoss:
    """The loss of one step."""

    step: int
    loss: float
    """Mean over its trained tokens."""
    rise: float | None
    """Loss above the median of the steps before it, at most `BEFORE`; None if there are none before."""
    documents: int
    """Documents (pieces) with a trained token."""
    tokens: int
    """Trained tokens."""
    highest: float
    """The highest mean loss of a document."""


@dataclass(frozen=True, slots=True)
class DocumentLoss:
    """A document (piece) in a step."""

    id: str
    doc_id: int
    source: str
    file: str
    line: int
    dataset: str
    """Folder or URL."""
    split: str
    row: int
    """Packed row of the split."""
    place: int
    """Which document of the row, from 0."""
    rank: int
    tokens: int
    """Trained tokens."""
    loss: float
    """Mean over its trained tokens."""
    share: float
    """Of the step's loss."""
    inspect: str
    """The command that shows the document."""


def list_steps(record: LossRecord) -> list[StepLoss]:
    """All recorded steps, the highest rise above those before first, and last the step with none before it."""
    steps, begins = _begins(record)
    if not len(steps):
        return []
    tokens, losses = record.column("tokens").astype(np.int64), record.column("loss").astype(np.float64)
    sums, counts = np.add.reduceat(losses, begins), np.add.reduceat(tokens, begins)
    highest, documents = np.maximum.reduceat(losses / tokens, begins), np.diff(begins, append=len(losses))
    means = sums / counts
    rises = _rises(means)
    order = np.lexsort((steps, -np.nan_to_num(rises, nan=np.inf)))  # what is no number comes first
    found = []
    for index in order:
        step, mean, rise, *others = (one[index].item() for one in (steps, means, rises, documents, counts, highest))
        found.append(StepLoss(step, mean, None if rise == -np.inf else rise, *others))
    return found


def explain_step(
    record: LossRecord, step: int, elsewhere: Sequence[str] = (), by: str = "loss", top: int | None = None
) -> tuple[StepLoss, list[DocumentLoss]]:
    """A step, and its documents with the highest losses.

    Args:
        elsewhere: where datasets lie now, if not where they were; each is known by its manifest's hash.
        by: see `RankBy`.
        top: only so many documents; None for all.

    Raises:
        InputError: the step is not recorded, or a dataset is not what was trained on.
        IntegrityError: a dataset is damaged.
    """
    key = choice("by", by, RankBy)
    found = next((one for one in list_steps(record) if one.step == step), None)
    if found is None:
        raise InputError(f"{record.out} has no losses of step {step:,}; choose one of {_known(record)}")
    here = slice(*np.searchsorted(record.column("step"), [step, step + 1]).tolist())
    columns = {name: record.column(name)[here] for name in LOSSES.names}
    sums = columns["loss"].astype(np.float64)
    means, total = sums / columns["tokens"], float(sums.sum())
    order = np.argsort(-np.nan_to_num(means if key is RankBy.LOSS else sums, nan=np.inf), kind="stable")[:top]
    rows = [{name: column[at].item() for name, column in columns.items()} for at in order]
    if any(not 0 <= row["dataset"] < len(record.datasets) for row in rows):
        raise InputError(
            f"{record.out / FOLDER} is damaged: step {step:,} names a dataset that the training did not have; "
            "choose another step, or train again"
        )
    datasets = _open(record.datasets, {row["dataset"] for row in rows}, elsewhere)
    names = {
        number: document_names(rows_of, [row["doc_id"] for row in rows if row["dataset"] == number])
        for number, rows_of in datasets.items()
    }
    documents = []
    for row, mean, loss in zip(rows, means[order].tolist(), sums[order].tolist(), strict=True):
        if row["doc_id"] not in names[row["dataset"]]:
            raise InputError(
                f"{record.out / FOLDER} is damaged: step {step:,} has document {row['doc_id']}, not in its data; "
                "choose another step, or train again"
            )
        id, source, file, line = names[row["dataset"]][row["doc_id"]]
        where = str(datasets[row["dataset"]].where)
        documents.append(
            DocumentLoss(
                id=id,
                doc_id=row["doc_id"],
                source=source,
                file=file,
                line=line,
                dataset=where,
                split=record.datasets[row["dataset"]].split,
                row=row["row"],
                place=row["place"],
                rank=row["rank"],
                tokens=row["tokens"],
                loss=mean,
                share=loss / total if total else 0.0,
                inspect=shlex.join(["packtrain", "inspect", where, "--id", id]),
            )
        )
    return found, documents


def _begins(record: LossRecord) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The recorded steps, ascending, and where each begins in the table."""
    steps, begins = np.unique(record.column("step"), return_index=True)
    return steps.astype(np.int64), begins


def _rises(means: NDArray[np.float64]) -> NDArray[np.float64]:
    """(S,) rises; -inf for a number that has none before it."""
    rises = np.zeros_like(means)
    for at, mean in enumerate(means):
        before = means[max(0, at - BEFORE) : at]
        before = before[np.isfinite(before)]
        rises[at] = mean - np.median(before) if len(before) else (-np.inf if np.isfinite(mean) else np.nan)
    return rises


def _known(record: LossRecord) -> str:
    steps, _ = _begins(record)
    if not len(steps):
        return "none: the training ended before its first logging step"
    parts = np.split(steps, np.flatnonzero(np.diff(steps) != 1) + 1)
    return "steps " + ", ".join(f"{one[0]:,} to {one[-1]:,}" if len(one) > 1 else f"{one[0]:,}" for one in parts)


def _open(datasets: Sequence[TrainedOn], wanted: Iterable[int], elsewhere: Sequence[str]) -> dict[int, PackedRows]:
    """The datasets with these numbers, each with the manifest that it had."""
    hashes = {read_manifest(open_files(where)).hash: where for where in elsewhere}
    opened = {}
    for number in wanted:
        then = datasets[number]
        where = hashes.get(then.hash)
        opened[number] = PackedRows(where, then.split) if where else _where_it_was(then, bool(elsewhere))
    return opened


def _where_it_was(then: TrainedOn, others: bool) -> PackedRows:
    fix = "name its folder with --data" if not others else "none of --data is it, either"
    if "://" in then.where:  # an address in a file of unknown origin is not asked
        raise InputError(
            f"the training read the dataset {then.where}, which is not on this machine: --data {then.where}"
        )
    if not Path(then.where).is_dir():
        raise InputError(f"the dataset {then.where} is not there any more; {fix}")
    try:
        rows = PackedRows(then.where, then.split)
    except PacktrainError as error:
        raise InputError(f"the dataset of the training cannot be opened: {error}; {fix}") from error
    if rows.manifest.hash != then.hash:
        raise InputError(
            f"the dataset {then.where} has changed since the training (manifest {rows.manifest.hash[:16]}, then "
            f"{then.hash[:16]}), so its ids may be those of other documents; {fix}"
        )
    return rows
