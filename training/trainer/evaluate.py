"""Losses by whose they are: on held-out packed rows, by source; and of a step, by document.

Held out: the mean over all trained tokens, and over those of each source; of tokens with loss weights, the weighted
mean, as in training. All ranks make the same number of batches, because forward passes of a sharded model are
collective; rows that fill up the last ones have no trained tokens, and so do not count.

Of a step: its rows come from the loader in their order, and the weights from the newest whole checkpoint before it; so
a loss is that of these weights, not of the step's own.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...schemas.dataset.reader import MAKE_HOLDOUT
from ...schemas.dataset.row_batch import Row
from ...schemas.errors import ConfigError, InputError
from ..attention.packed_attention import use_packed
from ..batch import flatten, untrained
from ..loader import PackedLoader, StepDocument
from ..models.adapter import put_adapter
from ..models.model import add_adapters, check_fits, default_device, describe_merging, load_model
from ..packed_rows import PackedRows
from ..preference.reference import Reference
from ..targets import find_targets, token_losses
from .checkpoint import last_whole, read_checkpoint
from .loss import Forward
from .train_config import TrainConfig

ColumnsOf = Callable[[dict[str, Any]], torch.Tensor]
"""batch → float64 (D, M): for each document of the batch, M sums."""

# Held-out rows


@dataclass(frozen=True)
class HeldOut:
    """The packed rows on which the loss is measured, in the order in which they lie.

    Args:
        rows: all held-out rows.
        limit: only so many of them, the first ones.
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
    def sources(self) -> tuple[tuple[str, ...], NDArray[np.int64], NDArray[np.int64]]:
        """The names of the sources, the ids of all documents in the rows, ascending, and the source of each."""
        ids = np.unique(np.concatenate([self.rows.row(index).doc_ids for index in range(len(self))]))
        origins = self.rows.origins(ids.tolist())
        # In the order in which sources first come, for columns of the log that stay as they are.
        numbers: dict[str, int] = {}
        source_numbers = [numbers.setdefault(origins[doc_id].source, len(numbers)) for doc_id in ids.tolist()]
        return tuple(numbers), ids, np.array(source_numbers, np.int64)

    def batches(
        self, rank: int, world_size: int, reference: Reference | None = None
    ) -> Iterator[tuple[dict[str, Any], NDArray[np.int64]]]:
        """A rank's batches, and (D,) the number of the source of each document (piece) in them.

        Args:
            reference: log-probabilities of the rows' documents, which batches get.
        """
        _, ids, source_numbers = self.sources
        rows_of_ranks = self.rows_per_device * world_size
        for begin in range(0, len(self), rows_of_ranks):
            # With 2 rows a device, rank 1 takes rows 2 and 3, then 6 and 7 where there are two ranks.
            first = begin + rank * self.rows_per_device
            numbers = range(first, first + self.rows_per_device)
            rows = [self._row(index) for index in numbers]
            doc_ids = np.concatenate([row.doc_ids for row in rows])
            logps = None
            if reference is not None:
                logps = [
                    reference.of_row(self._number(index), len(row.seq_lengths))
                    for index, row in zip(numbers, rows, strict=True)
                ]
            yield flatten(rows, reference=logps), source_numbers[np.searchsorted(ids, doc_ids)]

    def _row(self, index: int) -> Row:
        """A row; beyond the last one, a row without trained tokens, which fills up the last batch."""
        row = self.rows.row(self._number(index))
        return row if index < len(self) else untrained(row)

    def _number(self, index: int) -> int:
        """The number of a row of the batches; beyond the last one, of the row that fills up."""
        return index if index < len(self) else 0


def open_held_out(config: TrainConfig, base: Path) -> HeldOut | None:
    """The rows that are evaluated; None if none are."""
    if config.eval is None:
        return None
    folder = config.place(config.eval.data or config.data, base)
    rows = PackedRows(folder, config.eval.split, **config.remote(base))
    return HeldOut(rows, config.eval.rows, config.rows_per_device)


def held_out_loader(config: TrainConfig, base: Path, ranks: int) -> PackedLoader | None:
    """A loader of the rows that are evaluated, in their order; None if none are."""
    if config.eval is None:
        return None
    folder = config.place(config.eval.data or config.data, base)
    rows = config.rows_per_device * ranks
    options = config.remote(base)
    return PackedLoader(folder, rows_per_step=rows, split=config.eval.split, order="sequential", tail="pad", **options)


def measure(
    held: HeldOut, columns_of: ColumnsOf, width: int, rank: int, world_size: int, reference: Reference | None = None
) -> torch.Tensor:
    """float64 (S, M): for each source, the sums of its documents' columns on this rank.

    Args:
        columns_of: what is summed.
        width: M.
        reference: see `HeldOut.batches`.
    """
    sums = torch.zeros(len(held.sources[0]), width, dtype=torch.float64)
    with torch.no_grad():
        for batch, sources in held.batches(rank, world_size, reference):
            # First by document, because a batch has documents of several sources.
            sums.index_add_(0, torch.from_numpy(sources), columns_of(batch).cpu())
    return sums


def held_out_metrics(
    sums: torch.Tensor, columns: Sequence[str], sources: Sequence[str], prefix: str
) -> dict[str, float]:
    """`{prefix}_loss`, `{prefix}_loss_{source}` and the number of tokens or pairs; further columns as the loss.

    A source without a trained token, or pair, has no loss, and is left out.

    Args:
        sums: (S, M) of all ranks together.
        columns: names of M, see `Objective.columns`.
        sources: names of S.
    """
    number = columns[2]
    means = [place for place in range(len(columns)) if place not in (1, 2)]
    metrics: dict[str, float] = {}
    for suffix, values in (
        ("", sums.sum(0).tolist()),
        *((f"_{name}", row) for name, row in zip(sources, sums.tolist(), strict=True)),
    ):
        weight = values[1]
        if suffix and not weight:
            continue
        for place in means:
            metrics[f"{prefix}_{columns[place]}{suffix}"] = values[place] / weight if weight else float("nan")
    metrics[f"{prefix}_{number}"] = float(sums[:, 2].sum())
    return metrics


# The documents of a step


@dataclass(frozen=True, slots=True)
class DocumentLoss(StepDocument):
    """A document (piece) in a step, with its loss."""

    trained: int
    """Tokens that are trained."""
    loss: float
    """Mean over its trained tokens."""
    share: float
    """Of the step's loss."""


@dataclass(frozen=True, slots=True)
class StepLoss:
    """A step, as a checkpoint before it sees it."""

    step: int
    data: str
    """Folder or URL of the dataset."""
    checkpoint: str
    """Folder of the weights; empty for those that training starts from."""
    loss: float
    """Mean over the step's trained tokens."""
    tokens: int
    documents: list[DocumentLoss]
    """Those with a trained token, the highest loss first."""


def explain_step(config: TrainConfig, base: Path, step: int) -> StepLoss:
    """The documents of a step by their losses.

    Args:
        base: where the configuration's relative paths start.
        step: from 1.

    Raises:
        ConfigError: the checkpoint's weights cannot be loaded, or are of another order of rows; or pairs are trained.
        InputError: the training has no such step, or the model has too few ids for the data.
    """
    if config.preference is not None:
        raise ConfigError(
            f"explain-loss shows the losses of tokens, by document; those of preference: {{loss: "
            f"{config.preference.loss}}} are of pairs. rewards/margin in the log says how far apart their answers are"
        )
    data = config.place(config.data, base)
    rows = config.rows_per_step
    options = {**config.loader_options(base), "static_shapes": False}
    loader = PackedLoader(data, rows_per_step=rows, accumulate=rows, rank=0, world_size=1, **options)
    steps = len(loader) // rows
    if not 1 <= step <= steps:
        raise InputError(f"the training has no step {step:,}; its data gives {steps:,}")
    folder = last_whole(base / config.out, max_step=step - 1)
    state = loader.state_dict() if folder is None else read_checkpoint(folder).loader
    loader.load_state_dict({**state, "rows": (step - 1) * rows})
    model = _load(config, base, folder)
    device = default_device()
    model.to(device).eval()
    loader.attention = use_packed(model, config.attention)
    check_fits(model, "the data", loader.corpus)
    forward = Forward(model)
    halves = (("bf16", torch.bfloat16), ("fp16", torch.float16))
    half = next((dtype for key, dtype in halves if config.trainer.get(key)), None)
    trained_documents: list[tuple[StepDocument, int, float]] = []
    """Each with the number of its trained tokens and the sum of their losses."""
    documents = iter(loader.explain(step - 1))
    for batch, _ in zip(loader, range(rows), strict=False):
        targets = find_targets(batch)
        moved = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in batch.items()}
        with torch.no_grad(), torch.autocast(device.type, half or torch.bfloat16, enabled=half is not None):
            losses = token_losses(forward.logits(model, moved, targets.to(device)), targets.tokens.to(device))
        sums = targets.document_sums(losses, batch).tolist()
        counts = targets.document_sums(torch.ones_like(losses), batch).tolist()
        # `documents` goes on over all batches: each takes as many as it has sums.
        for loss, count, document in zip(sums, counts, documents, strict=False):
            if count:
                trained_documents.append((document, int(count), loss))
    total = sum(loss for _, _, loss in trained_documents)
    tokens = sum(count for _, count, _ in trained_documents)
    document_losses = [
        DocumentLoss(**asdict(document), trained=count, loss=loss / count, share=loss / total if total else 0.0)
        for document, count, loss in trained_documents
    ]
    document_losses.sort(key=lambda document: -document.loss)
    checkpoint = "" if folder is None else str(folder)
    return StepLoss(step, data, checkpoint, total / max(1, tokens), tokens, document_losses)


def _load(config: TrainConfig, base: Path, folder: Path | None) -> Any:
    if folder is None or config.lora is not None:
        model = load_model(config.model, base, config.seed)
        if folder is None:
            return add_adapters(model, config.lora, config.seed)
        return put_adapter(model, folder)
    if not any(folder.glob("model*.safetensors")):
        raise ConfigError(f"{folder} is a sharded checkpoint; {describe_merging(folder)}")
    of_checkpoint = config.model.model_copy(update={"path": str(folder), "config": None})
    return load_model(of_checkpoint, base, config.seed)
