"""The losses of the documents that a training sees: by source for its log, one by one for its record.

Each micro-batch adds up its tokens' losses by document, on the device, and no step waits for that. At every logging
step and checkpoint the sums move to the host, all ranks' together, and the first process writes them down.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...schemas.errors import PacktrainError
from ..loader import PackedLoader
from ..losses.loss_file import LOSSES, LossWriter, TrainedOn
from ..losses.sources import DocumentSources
from .loss import Targets, document_sums

_LOG = logging.getLogger(__name__)
MOST_STEPS = 500
"""Steps whose sums stay on the device at most, where nothing is logged."""


@dataclass(slots=True)
class _Step:
    """A step whose losses are still on the device. D documents (pieces) of this rank, in the order of its batches."""

    number: int
    documents: dict[str, NDArray[np.int64]]
    """(D,) each: dataset, row, place and doc_id."""
    tokens: NDArray[np.int64]
    """(D,) trained tokens."""
    at: NDArray[np.int64]
    """(D,) where the documents lie among the sums of all batches, which count padding, too."""
    sums: list[torch.Tensor] = field(default_factory=list)
    """float64, one tensor for each batch so far."""
    batches: int = 0


class DocumentLosses:
    """Collects the losses of one rank's documents.

    Args:
        loader: the training's.
        out: the training's folder.

    Raises:
        IntegrityError: a dataset's table of documents is missing or damaged.
    """

    def __init__(self, loader: PackedLoader, out: Path) -> None:
        self.loader, self.out = loader, out
        self.sources = DocumentSources(loader.corpus.parts)
        self._writer: LossWriter | None = None
        self._steps: list[_Step] = []
        self._clear()

    def begin(self, step: int, writes: bool) -> None:
        """Record from here on.

        Args:
            step: number of steps made before.
            writes: this is the first process.
        """
        self.end()
        self._steps.clear()
        self._clear()
        if writes:
            parts = self.loader.corpus.parts
            datasets = [TrainedOn(_absolute(part.where), part.split, part.manifest.hash) for part in parts]
            self._writer = LossWriter(self.out, step, datasets)

    def end(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def drew(self, number: int, position: int, batches: Sequence[tuple[Mapping[str, Any], Targets]]) -> None:
        """Note which documents stand in a step. Every rank calls it before the step.

        Args:
            number: of the step, from 1.
            position: of its first row in the loader's order.
            batches: this rank's, with their targets.
        """
        if len(self._steps) >= MOST_STEPS:
            self.collect()
        counts = np.concatenate(
            [np.bincount(wanted.pieces.numpy(), minlength=_pieces(batch)) for batch, wanted in batches]
        )
        documents, at = self._documents(position)
        trained = counts[at] > 0
        here = {name: column[trained] for name, column in documents.items()}
        self._steps.append(_Step(number, here, counts[at[trained]], at[trained], batches=len(batches)))

    def keep(self, batch: Mapping[str, Any], wanted: Targets) -> Callable[[torch.Tensor], None]:
        """What takes the losses (n,) of a batch's trained tokens. `wanted` is on their device."""
        return partial(self._add, wanted, _pieces(batch))

    def collect(self) -> None:
        """Move the sums of all finished steps to the host, and write them down. Every rank must call it, after the
        same step.
        """
        from accelerate.utils import gather_object

        done = [step for step in self._steps if len(step.sums) == step.batches]
        self._steps = [step for step in self._steps if len(step.sums) < step.batches]
        ranks = gather_object([self._table(done)])
        table = {name: np.concatenate([one[name] for one in ranks]) for name in LOSSES.names}
        for dataset in np.unique(table["dataset"]).tolist():
            mine = table["dataset"] == dataset
            sources = self.sources.of(dataset, table["doc_id"][mine])
            self._by_source += self.sources.sums(sources, table["loss"][mine], table["tokens"][mine])
        if self._writer is not None and len(table["step"]):
            order = np.argsort(table["step"], kind="stable")
            self._writer.write({name: column[order] for name, column in table.items()})

    def by_source(self) -> NDArray[np.float64]:
        """(S, 2): sums of losses and trained tokens by source, over all ranks, since the last call."""
        found = self._by_source
        self._clear()
        return found

    def _add(self, wanted: Targets, size: int, losses: torch.Tensor) -> None:
        step = next((one for one in self._steps if len(one.sums) < one.batches), None)
        if step is not None:
            step.sums.append(document_sums(losses, wanted, size))

    def _documents(self, position: int) -> tuple[dict[str, NDArray[np.int64]], NDArray[np.int64]]:
        """This rank's documents of a step, and the number of each among the pieces of all its batches."""
        step, corpus, shape = self.loader.steps.at(position), self.loader.corpus, self.loader.shape
        found: list[tuple[int, int, NDArray[np.int64]]] = []
        for row in step.rows[step.hands[self.loader.place.rank]].tolist():
            part, index = corpus.locate(row)
            found.append((part, index, corpus.parts[part].row(index).doc_ids))
        sizes = np.array([len(doc_ids) for _, _, doc_ids in found])
        widths = sizes if shape is None else np.full_like(sizes, shape.docs + 1)  # padding is a piece, too
        place = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        columns = {
            "dataset": np.repeat([part for part, _, _ in found], sizes),
            "row": np.repeat([index for _, index, _ in found], sizes),
            "place": place,
            "doc_id": np.concatenate([doc_ids for _, _, doc_ids in found]),
        }
        return columns, np.repeat(np.cumsum(widths) - widths, sizes) + place

    def _table(self, steps: list[_Step]) -> dict[str, NDArray[Any]]:
        """LOSSES of this rank."""
        if not steps:
            return {field.name: np.zeros(0, field.type.to_pandas_dtype()) for field in LOSSES}
        lengths = [len(step.tokens) for step in steps]
        sums = torch.cat([one for step in steps for one in step.sums]).cpu().numpy()  # the only wait for the device
        sizes = [sum(map(len, step.sums)) for step in steps]
        begins = np.repeat(np.cumsum(sizes) - sizes, lengths)
        columns = {name: np.concatenate([step.documents[name] for step in steps]) for name in steps[0].documents}
        return {
            "step": np.repeat([step.number for step in steps], lengths),
            "rank": np.full(sum(lengths), self.loader.place.rank),
            **columns,
            "tokens": np.concatenate([step.tokens for step in steps]),
            "loss": sums[begins + np.concatenate([step.at for step in steps])],
        }

    def _clear(self) -> None:
        self._by_source = np.zeros((len(self.sources.names), 2))


def open_losses(loader: PackedLoader, out: Path, wanted: bool | None) -> DocumentLosses | None:
    """What records losses; None where a configuration does not want it, or the datasets' tables cannot be read.

    Raises:
        PacktrainError: they cannot be read, and the configuration asks for it.
    """
    if wanted is False:
        return None
    try:
        return DocumentLosses(loader, out)
    except PacktrainError as error:
        if wanted:
            raise
        _LOG.warning("losses by source and document are not recorded: %s", error)
        return None


def _pieces(batch: Mapping[str, Any]) -> int:
    """Number of documents (pieces) of a batch, padding included."""
    return int(batch["cu_seq_lens_q"].shape[0]) - 1


def _absolute(where: str | Path) -> str:
    text = str(where)
    return text if "://" in text else str(Path(text).absolute())
