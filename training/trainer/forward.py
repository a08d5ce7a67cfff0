"""One forward pass of the model that trains, as the trainer, the evaluation and the probe all make it."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from ...schemas.errors import ConfigError
from ..attention.apply import unwrap
from .fused_loss import FusedLoss
from .loss import Targets, chosen_logits, weighted_sum

NOT_FOR_THE_MODEL = ("labels",)
"""Columns of a batch that only the loss uses."""


class Forward:
    """Calls a model so that its loss is a sum over trained tokens, divided by what the whole step counts.

    Args:
        bare: the model of transformers, not wrapped: its signature says what it takes.
        fused: what computes the loss in the model's head; None for a model that gives logits.
        every_position: compute the logits of all positions, so that shapes never change.
    """

    def __init__(self, bare: Any, *, fused: FusedLoss | None = None, every_position: bool = False) -> None:
        self.fused = fused
        named = inspect.signature(unwrap(bare).forward).parameters
        anything = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in named.values())
        self._keeps = "logits_to_keep" in named and not every_position
        self._takes = None if anything else frozenset(named)
        config = getattr(bare, "config", None)
        self._auxiliary = float(getattr(config, "router_aux_loss_coef", 0) or 0)

    def logits(self, model: Any, batch: Mapping[str, Any], wanted: Targets) -> torch.Tensor:
        """(n, V): the logits that predict the trained tokens. `batch` and `wanted` are on the model's device."""
        return self._outputs(model, batch, wanted)[0]

    def loss(
        self, model: Any, batch: Mapping[str, Any], wanted: Targets, units: torch.Tensor, *, share: float
    ) -> torch.Tensor:
        """This micro-batch's part of the step's loss. The parts of all micro-batches and ranks add up to it.

        Args:
            units: number of trained tokens, or documents, in the whole step.
            share: 1 / (ranks · micro-batches), this micro-batch's weight in a mean over the step's; the
                auxiliary loss of a mixture of experts is such a mean.
        """
        if self.fused is None:
            logits, auxiliary = self._outputs(model, batch, wanted)
            loss = weighted_sum(logits, wanted) / units
        else:
            with self.fused.of(wanted, units):
                outputs = model(**self._inputs(batch), labels=batch["labels"])
            auxiliary = self._of_experts(outputs)
            loss = outputs["loss"] if auxiliary is None else outputs["loss"] - auxiliary
        return loss if auxiliary is None else loss + auxiliary * share

    def _outputs(
        self, model: Any, batch: Mapping[str, Any], wanted: Targets
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        inputs = self._inputs(batch)
        kept = self._keeps and batch["input_ids"].shape[0] == 1
        if kept:
            inputs["logits_to_keep"] = wanted.index
        outputs = model(**inputs)
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        return chosen_logits(logits, wanted, kept=kept), self._of_experts(outputs)

    def _inputs(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        inputs = {key: value for key, value in batch.items() if key not in NOT_FOR_THE_MODEL}
        if self._takes is not None and (unknown := sorted(set(inputs) - self._takes)):
            raise ConfigError(
                f"the model's forward takes neither **kwargs nor {', '.join(unknown)}, which packed batches need; "
                "take another model"
            )
        return inputs

    def _of_experts(self, outputs: Any) -> torch.Tensor | None:
        found = outputs.get("aux_loss") if self._auxiliary and isinstance(outputs, dict) else None
        return None if found is None else self._auxiliary * found
