"""The held-out packed rows of a training, and their losses, over all and by source.

A loss is the mean over all trained tokens; of tokens with loss weights the weighted mean, as in training. All ranks
make the same number of batches, because forward passes of a sharded model are collective; rows that fill up the last
ones have no trained tokens, and so do not count.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ...schemas.dataset.reader import MAKE_HOLDOUT
from ...schemas.dataset.row_batch import Row
from ...schemas.errors import ConfigError
from ..batch import flatten, untrained
from ..loader import PackedLoader
from ..packed_rows import PackedRows
from ..preference.reference import Reference
from .train_config import TrainConfig


class DocumentSources(NamedTuple):
    """The sources of N documents."""

    names: tuple[str, ...]
    """Of the sources."""
    doc_ids: NDArray[np.int64]
    """(N,) the documents, ascending."""
    numbers: NDArray[np.int64]
    """(N,) the source of each document, as its place in `names`."""

    def numbers_of(self, doc_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """(D,) the sources of some of the documents, as places in `names`. Each of `doc_ids` must be among the N."""
        return self.numbers[np.searchsorted(self.doc_ids, doc_ids)]


@dataclass(frozen=True)
class HeldOut:
    """The packed rows on which the loss is measured, in the order of their files.

    Args:
        rows: all held-out rows.
        limit: measure on the first rows only, this many; None for all.
        rows_per_device: rows of one forward pass on one device.

    Raises:
        ConfigError: there are no rows.
    """

    rows: PackedRows
    limit: int | None = None
    rows_per_device: int = 1

    def __post_init__(self) -> None:
        if not len(self):
            raise ConfigError(
                f"eval: the split of {self.rows.files.address} has no rows to measure a loss on; name another split, "
                f"or leave eval out; {MAKE_HOLDOUT}"
            )

    def __len__(self) -> int:
        return len(self.rows) if self.limit is None else min(self.limit, len(self.rows))

    @cached_property
    def sources(self) -> DocumentSources:
        """The source of each document in the rows. Reads all rows, once, because the document table may have others."""
        doc_ids = np.unique(np.concatenate([self.rows.row(index).doc_ids for index in range(len(self))]))
        origins = self.rows.origins(doc_ids.tolist())
        # Numbered in the order in which they first come, so that trainings on this data log the same columns.
        number_of: dict[str, int] = {}
        numbers = [number_of.setdefault(origins[doc_id].source, len(number_of)) for doc_id in doc_ids.tolist()]
        return DocumentSources(tuple(number_of), doc_ids, np.array(numbers, np.int64))

    def batches(
        self, rank: int, world_size: int, reference: Reference | None = None
    ) -> Iterator[tuple[dict[str, Any], NDArray[np.int64]]]:
        """A rank's batches, each with (D,) the source of each document (piece) in it, as its place in `sources.names`.

        Args:
            reference: the log-probabilities of the rows' documents, which batches get; None for losses without any.
        """
        rows_of_ranks = self.rows_per_device * world_size
        for begin in range(0, len(self), rows_of_ranks):
            # With 2 rows a device, rank 1 takes rows 2 and 3, then 6 and 7 where there are two ranks.
            first = begin + rank * self.rows_per_device
            indices = range(first, first + self.rows_per_device)  # beyond the last row, where it fills up the batch
            rows = [self._row(index) for index in indices]
            doc_ids = np.concatenate([row.doc_ids for row in rows])
            logps = None
            if reference is not None:
                # Of each row as many values as it has documents, which is as many as it has lengths.
                logps = [
                    reference.of_row(self._row_number(index), documents=len(row.seq_lengths))
                    for index, row in zip(indices, rows, strict=True)
                ]
            yield flatten(rows, reference=logps), self.sources.numbers_of(doc_ids)

    def _row(self, index: int) -> Row:
        """Row `index`; beyond the last one, the first row without its trained tokens, which fills up the last batch."""
        row = self.rows.row(self._row_number(index))
        return row if index < len(self) else untrained(row)

    def _row_number(self, index: int) -> int:
        """The row that is read for an index: the row itself; beyond the last one, row 0."""
        return index if index < len(self) else 0


def open_held_out(config: TrainConfig, base: Path) -> HeldOut | None:
    """The held-out rows that are evaluated; None if the configuration has no `eval`."""
    if config.eval is None:
        return None
    folder = config.place(config.eval.data or config.data, base)
    rows = PackedRows(folder, config.eval.split, **config.remote(base))
    return HeldOut(rows, config.eval.rows, config.rows_per_device)


def held_out_loader(config: TrainConfig, base: Path, ranks: int) -> PackedLoader | None:
    """A loader of the held-out rows in their order, for the pass that computes their reference; None if the
    configuration has no `eval`.
    """
    if config.eval is None:
        return None
    folder = config.place(config.eval.data or config.data, base)
    rows = config.rows_per_device * ranks  # one batch a rank; the last ones are filled up, so that no row is left out
    options = config.remote(base)
    return PackedLoader(folder, rows_per_step=rows, split=config.eval.split, order="sequential", tail="pad", **options)


def held_out_metrics(
    sums: torch.Tensor, columns: Sequence[str], sources: Sequence[str], prefix: str
) -> dict[str, float]:
    """`{prefix}_loss`, `{prefix}_loss_{source}` and the number of tokens or pairs, such as `eval_tokens`. Each further
    figure is a mean as the loss is, and named in the same way.

    A source without a trained token, or pair, has no loss, and is left out. If no source has one, the loss is NaN.

    Args:
        sums: (S, M) for each source the sum of each column, of all ranks together.
        columns: the M names, see `Objective.columns`: `loss`, `weight`, what is counted, then further figures.
        sources: the S names.
    """
    means = [columns[0], *columns[3:]]  # the loss and further figures; between them stand weight and count
    count_name = columns[2]
    metrics: dict[str, float] = {}
    total = dict(zip(columns, sums.sum(0).tolist(), strict=True))
    for name in means:
        metrics[f"{prefix}_{name}"] = total[name] / total["weight"] if total["weight"] else float("nan")
    for source, row in zip(sources, sums.tolist(), strict=True):
        of_source = dict(zip(columns, row, strict=True))
        for name in means:
            if of_source["weight"]:
                metrics[f"{prefix}_{name}_{source}"] = of_source[name] / of_source["weight"]
    metrics[f"{prefix}_{count_name}"] = total[count_name]
    return metrics
