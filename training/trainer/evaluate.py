"""Losses by whose they are: on held-out packed rows, by source; and of a step, by document.

Held out: the mean over all trained tokens, and over those of each source; of tokens with loss weights, the weighted
mean, as in training. All ranks make the same number of batches, because forward passes of a sharded model are
collective; rows that fill up the last ones have no trained tokens, and so do not count.

Of a step: its rows come from the loader in their order, and the weights from the newest whole checkpoint before it; so
a loss is that of these weights, not of the step's own.
"""

from collections.abc import Callable, Iterator
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
from ..adapter import put_adapter
from ..attention.packed_attention import use_packed
from ..batch import flatten, untrained
from ..loader import PackedLoader, StepDocument
from ..model import add_adapters, check_fits, default_device, load_model
from ..packed_rows import PackedRows
from ..targets import Targets, find_targets, token_losses
from .checkpoint import last_whole, read_checkpoint
from .loss import Forward
from .train_config import TrainConfig

Logits = Callable[[dict[str, Any], Targets], torch.Tensor]
"""(batch, targets) → (n, V) logits that predict the trained tokens."""

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

    def batches(self, rank: int, world_size: int) -> Iterator[tuple[dict[str, Any], NDArray[np.int64]]]:
        """A rank's batches, and (D,) the number of the source of each document (piece) in them."""
        _, ids, source_numbers = self.sources
        rows_of_ranks = self.rows_per_device * world_size
        for begin in range(0, len(self), rows_of_ranks):
            # With 2 rows a device, rank 1 takes rows 2 and 3, then 6 and 7 where there are two ranks.
            first = begin + rank * self.rows_per_device
            rows = [self._row(index) for index in range(first, first + self.rows_per_device)]
            doc_ids = np.concatenate([row.doc_ids for row in rows])
            yield flatten(rows), source_numbers[np.searchsorted(ids, doc_ids)]

    def _row(self, index: int) -> Row:
        """A row; beyond the last one, a row without trained tokens, which fills up the last batch."""
        return self.rows.row(index) if index < len(self) else untrained(self.rows.row(0))


def open_held_out(config: TrainConfig, base: Path) -> HeldOut | None:
    """The rows that are evaluated; None if none are."""
    if config.eval is None:
        return None
    folder = config.place(config.eval.data or config.data, base)
    rows = PackedRows(folder, config.eval.split, **config.remote(base))
    return HeldOut(rows, config.eval.rows, config.rows_per_device)


def measure(
    held: HeldOut, logits: Logits, device: torch.device | str, rank: int = 0, world_size: int = 1
) -> torch.Tensor:
    """float64 (S, 3) on `device`: for each source, the sum of its tokens' losses on this rank, each times its weight;
    the sum of their weights; and their number.
    """
    sums = torch.zeros(len(held.sources[0]), 3, dtype=torch.float64)
    with torch.no_grad():
        for batch, sources in held.batches(rank, world_size):
            targets = find_targets(batch)
            losses = token_losses(logits(batch, targets), targets.tokens.to(device)).cpu()
            counts = torch.ones(len(losses))
            weights = counts if targets.weights is None else targets.weights
            # First by document, because a batch has documents of several sources.
            columns = [targets.document_sums(values, batch) for values in (losses * weights, weights, counts)]
            sums.index_add_(0, torch.from_numpy(sources), torch.stack(columns, dim=1))
    return sums.to(device)


def loss_metrics(sums: torch.Tensor, names: tuple[str, ...], prefix: str) -> dict[str, float]:
    """`{prefix}_loss`, `{prefix}_loss_{source}` and `{prefix}_tokens`, from the sums of all ranks together.

    A source without a trained token has no loss, and is left out.
    """
    total, total_weight, count = sums.sum(0).tolist()
    metrics = {f"{prefix}_loss": total / total_weight if total_weight else float("nan")}
    for name, (loss, weight, _) in zip(names, sums.tolist(), strict=True):
        if weight:
            metrics[f"{prefix}_loss_{name}"] = loss / weight
    metrics[f"{prefix}_tokens"] = count
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
        ConfigError: the checkpoint's weights cannot be loaded, or are of another order of rows.
        InputError: the training has no such step, or the model has too few ids for the data.
    """
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
        raise ConfigError(
            f"{folder} holds no whole weights; `packtrain export {folder} --to model -o FOLDER` makes them"
        )
    of_checkpoint = config.model.model_copy(update={"path": str(folder), "config": None})
    return load_model(of_checkpoint, base, config.seed)
