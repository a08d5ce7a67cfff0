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
from ...schemas.errors import ConfigError, InputError
from ..adapter import put_adapter
from ..attention.packed_attention import use_packed
from ..batch import flatten, untrained
from ..loader import PackedLoader, StepDocument
from ..model import add_adapters, check_fits, default_device, load_model
from ..packed_rows import PackedRows
from .checkpoint import last_whole, read_checkpoint
from .loss import Forward, Targets, targets, token_losses
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
        numbers: dict[str, int] = {}
        codes = [numbers.setdefault(origins[one].source, len(numbers)) for one in ids.tolist()]
        return tuple(numbers), ids, np.array(codes, np.int64)

    def batches(self, rank: int, world_size: int) -> Iterator[tuple[dict[str, Any], NDArray[np.int64]]]:
        """A rank's batches, and (D,) the number of the source of each document (piece) in them."""
        _, ids, numbers = self.sources
        width = self.rows_per_device * world_size
        for begin in range(0, len(self), width):
            first = begin + rank * self.rows_per_device
            indices = range(first, first + self.rows_per_device)
            # Rows that fill up the last batch are not trained.
            rows = [self.rows.row(one) if one < len(self) else untrained(self.rows.row(0)) for one in indices]
            documents = np.concatenate([row.doc_ids for row in rows])
            yield flatten(rows), numbers[np.searchsorted(ids, documents)]


def measure(
    held: HeldOut, logits: Logits, device: torch.device | str, rank: int = 0, world_size: int = 1
) -> torch.Tensor:
    """float64 (S, 3) on `device`: for each source, the sum of its tokens' losses on this rank, each times its weight;
    the sum of their weights; and their number.
    """
    sums = torch.zeros(len(held.sources[0]), 3, dtype=torch.float64)
    with torch.no_grad():
        for batch, sources in held.batches(rank, world_size):
            wanted = targets(batch)
            losses = token_losses(logits(batch, wanted), wanted.tokens.to(device)).cpu()
            ones = torch.ones(len(losses))
            weights = ones if wanted.weights is None else wanted.weights
            columns = [wanted.document_sums(one, batch) for one in (losses * weights, weights, ones)]
            sums.index_add_(0, torch.from_numpy(sources), torch.stack(columns, dim=1))
    return sums.to(device)


def loss_metrics(sums: torch.Tensor, names: tuple[str, ...], prefix: str) -> dict[str, float]:
    """`{prefix}_loss`, `{prefix}_loss_{source}` and `{prefix}_tokens`, from the sums of all ranks together.

    A source without a trained token has no loss, and is left out.
    """
    total, weight, count = sums.sum(0).tolist()
    each = zip(names, sums.tolist(), strict=True)
    by_source = {f"{prefix}_loss_{name}": loss / weights for name, (loss, weights, _) in each if weights}
    return {f"{prefix}_loss": total / weight if weight else float("nan"), **by_source, f"{prefix}_tokens": count}


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
    data, rows = config.place(config.data, base), config.rows_per_step
    options = {**config.loader_options(base), "static_shapes": False}
    loader = PackedLoader(data, rows_per_step=rows, accumulate=rows, rank=0, world_size=1, **options)
    steps = len(loader) // rows
    if not 1 <= step <= steps:
        raise InputError(f"the training has no step {step:,}; its data gives {steps:,}")
    folder = last_whole(base / config.out, most=step - 1)
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
    found: list[tuple[StepDocument, int, float]] = []
    documents = iter(loader.explain(step - 1))
    for batch, _ in zip(loader, range(rows), strict=False):
        wanted = targets(batch)
        moved = {name: one.to(device) if isinstance(one, torch.Tensor) else one for name, one in batch.items()}
        with torch.no_grad(), torch.autocast(device.type, half or torch.bfloat16, enabled=half is not None):
            each = token_losses(forward.logits(model, moved, wanted.to(device)), wanted.tokens.to(device))
        sums, counts = (wanted.document_sums(one, batch).tolist() for one in (each, torch.ones_like(each)))
        found += [(document, int(n), loss) for loss, n, document in zip(sums, counts, documents, strict=False)]
    total, tokens = sum(loss for *_, loss in found), sum(n for _, n, _ in found)
    losses = [
        DocumentLoss(**asdict(one), trained=n, loss=loss / n, share=loss / total if total else 0.0)
        for one, n, loss in found
        if n
    ]
    losses.sort(key=lambda one: -one.loss)
    return StepLoss(step, data, "" if folder is None else str(folder), total / max(1, tokens), tokens, losses)


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
    own = config.model.model_copy(update={"path": str(folder), "config": None})
    return load_model(own, base, config.seed)
