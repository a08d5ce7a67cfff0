"""Loss weights in trainers of transformers and TRL, and in a loop of your own."""

from collections.abc import Mapping
from typing import Any

import torch

from ...schemas.errors import ConfigError
from ...schemas.rows import IGNORE_INDEX
from .loss import token_losses

LABELS, WEIGHTS = ("shift_labels", "labels"), ("shift_loss_weights", "loss_weights")


def weighted_loss(
    logits: torch.Tensor, batch: Mapping[str, Any], units: torch.Tensor | float | None = None
) -> torch.Tensor:
    """The sum of weight times cross-entropy of a batch's trained tokens, over `units`.

    Args:
        logits: (B, T, V) of all positions.
        batch: of a packtrain loader, on the same device: `labels` and `loss_weights` (B, T), or with context
            parallelism `shift_labels` and `shift_loss_weights`. Without weights all tokens count 1.
        units: sum of the weights (`loss_units`) over all micro-batches and ranks of the step, so that their losses add
            up to the step's mean. None: that of this batch alone, whose mean is then returned.
    """
    tokens, weights, ahead = _parts(batch)
    trained = tokens != IGNORE_INDEX
    losses = token_losses(logits[:, : logits.shape[1] - ahead][trained], tokens[trained])
    if weights is not None:
        losses = losses * weights[trained]
    whole = loss_units(batch) if units is None else units
    return losses.sum() / torch.as_tensor(whole, device=losses.device).clamp_min(torch.finfo(torch.float32).tiny)


def loss_units(batch: Mapping[str, Any]) -> torch.Tensor:
    """What a batch adds to `units` of `weighted_loss`: the sum of the weights of its trained tokens, float64."""
    tokens, weights, _ = _parts(batch)
    trained = tokens != IGNORE_INDEX
    return trained.sum().double() if weights is None else weights[trained].double().sum()


def _parts(batch: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor | None, int]:
    """Labels and weights as they belong to logits, and how many positions at the end predict nothing."""
    if LABELS[0] in batch:
        return batch[LABELS[0]], batch.get(WEIGHTS[0]), 0
    weights = batch.get(WEIGHTS[1])
    return batch[LABELS[1]][:, 1:], None if weights is None else weights[:, 1:], 1


class WeightedLoss:
    """Makes a trainer of transformers use `loss_weights`: `class Weighted(WeightedLoss, Trainer)`.

    Put it before the trainer's class: transformers.Trainer, TRL's SFTTrainer, or one of your own. The loss of a step is
    the weighted mean over all its micro-batches and ranks, and so is that of an evaluation. It computes all logits;
    PackedTrainer does not.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # transformers then counts a step's batches, and does not divide their losses by the number of micro-batches.
        self.model_accepts_loss_kwargs = self.loss_is_scaled_for_ga = True

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: Any) -> torch.Tensor:
        """The sum of the weights of some batches, over all ranks."""
        trainer: Any = self
        units = torch.stack([loss_units(batch) for batch in batch_samples]).sum().to(device)
        whole: torch.Tensor = trainer.accelerator.gather(units).sum() if trainer.args.world_size > 1 else units
        return whole

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """This micro-batch's part of the step's loss, times the number of ranks, because gradients are averaged."""
        if WEIGHTS[1] not in inputs:
            raise ConfigError(
                "WeightedLoss: the batch has no loss_weights, although rows should; keep the trainer from removing "
                "columns (remove_unused_columns=False), and give a collator that knows them, such as "
                "packtrain.training.collate"
            )
        own = {*LABELS, *WEIGHTS}
        outputs = model(**{name: value for name, value in inputs.items() if name not in own})
        trainer: Any = self
        ranks = trainer.accelerator.num_processes if num_items_in_batch is not None else 1
        loss = weighted_loss(outputs["logits"], inputs, num_items_in_batch) * ranks
        return (loss, outputs) if return_outputs else loss
