"""The documents of a step with their losses: when the loss of a step jumps, they show which documents made it jump.

The step's rows come from the loader in their order, and the weights from the newest whole checkpoint before it; so a
loss is that of these weights, not of the step's own.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ...schemas.errors import ConfigError, InputError
from ..attention.packed_attention import use_packed
from ..loader import PackedLoader, StepDocument
from ..models.adapter import put_adapter
from ..models.limits import check_fits
from ..models.model import add_adapters, default_device, load_model
from ..targets import find_targets, token_losses
from .checkpoint import last_whole, read_checkpoint
from .loss import Forward
from .train_config import TrainConfig


@dataclass(frozen=True, slots=True)
class DocumentLoss(StepDocument):
    """A document (piece) in a step, with its loss."""

    trained: int
    """Tokens that are trained."""
    loss: float
    """Mean over its trained tokens."""
    share: float
    """The document's part of the step's summed loss, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class StepLoss:
    """A step, with the losses by the weights of a checkpoint before it."""

    step: int
    """From 1."""
    data: str
    """Folder or URL of the dataset."""
    checkpoint: str
    """Folder of the weights; empty for those that training starts from."""
    loss: float
    """Mean over the step's trained tokens."""
    tokens: int
    """The step's trained tokens."""
    documents: list[DocumentLoss]
    """The documents with a trained token, the highest loss first."""


def explain_step(config: TrainConfig, base: Path, step: int) -> StepLoss:
    """The documents of a step with their losses, the highest first. One process looks at all of the step's rows.

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
    # As many micro-batches as rows, so that a batch has one row, and needs little memory.
    loader = PackedLoader(data, rows_per_step=rows, accumulate=rows, rank=0, world_size=1, **options)
    steps = len(loader) // rows
    if not 1 <= step <= steps:
        raise InputError(f"the training has no step {step:,}; its data gives {steps:,}")
    folder = last_whole(base / config.out, max_step=step - 1)
    # A checkpoint's state holds the order of its training: the loader refuses it if the configuration has another.
    state = loader.state_dict() if folder is None else read_checkpoint(folder).loader
    loader.load_state_dict({**state, "rows": (step - 1) * rows})  # the rows of all steps before this one are read
    model = _load(config, base, folder)
    device = default_device()
    model.to(device).eval()
    loader.attention = use_packed(model, config.attention)
    check_fits(model, name="the data", rows=loader.corpus)
    forward = Forward(model)
    # The training's precision, because in another one losses differ.
    halves = (("bf16", torch.bfloat16), ("fp16", torch.float16))
    half = next((dtype for key, dtype in halves if config.trainer.get(key)), None)
    # Each with the number of its trained tokens and the sum of their losses.
    trained_documents: list[tuple[StepDocument, int, float]] = []
    documents = iter(loader.explain(step - 1))  # which counts steps from 0
    # The step's batches: as many as it has rows.
    for batch, _ in zip(loader, range(rows), strict=False):
        targets = find_targets(batch)
        moved = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in batch.items()}
        # Without bf16 or fp16, autocast is off, and the dtype that it is given counts for nothing.
        with torch.no_grad(), torch.autocast(device.type, half or torch.bfloat16, enabled=half is not None):
            losses = token_losses(forward.logits(model, moved, targets.to(device)), targets.tokens.to(device))
        sums = targets.document_sums(losses, batch).tolist()
        counts = targets.document_sums(torch.ones_like(losses), batch).tolist()
        # `documents` goes on over all batches: each batch takes as many as it has sums. It stands last, because `zip`
        # ends at the first iterator without a value, and would have taken one from those before it.
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
    """The model with the weights of a checkpoint; without one, those that training starts from.

    Raises:
        ConfigError: the checkpoint holds no whole weights, or they cannot be loaded.
    """
    # A checkpoint of a training with adapters holds these alone, so the model under them is loaded first.
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
