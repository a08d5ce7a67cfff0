"""Whose loss it is: the documents of a step by their losses, computed again from a checkpoint.

The step's rows come from the loader in their order, and the weights from the newest whole checkpoint before the step;
so a loss is that of these weights, not of the step's own.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ...schemas.errors import ConfigError, InputError
from ..attention import use_packed
from ..loader import PackedLoader, StepDocument
from ..model import ModelLimits, add_adapters, default_device, load_model, put_adapter
from .checkpoint import last_whole, read_checkpoint
from .loss import Forward, targets, token_losses
from .train_config import TrainConfig


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
    use_packed(model, config.attention)
    forward, limits = Forward(model), ModelLimits.of(model)
    found: list[tuple[StepDocument, int, float]] = []
    documents = iter(loader.explain(step - 1))
    for batch, _ in zip(loader, range(rows), strict=False):
        limits.check_batch(batch)
        wanted = targets(batch)
        moved = {name: one.to(device) if isinstance(one, torch.Tensor) else one for name, one in batch.items()}
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=bool(config.trainer.get("bf16"))):
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
            return add_adapters(model, config.lora)
        return put_adapter(model, folder)
    if not any(folder.glob("model*.safetensors")):
        raise ConfigError(
            f"{folder} holds no whole weights; `packtrain export {folder} --to model -o FOLDER` makes them"
        )
    own = config.model.model_copy(update={"path": str(folder), "config": None})
    return load_model(own, base, config.seed)
