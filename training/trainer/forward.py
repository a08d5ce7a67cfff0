"""One forward pass of the model that trains, as the trainer, the evaluation and the probe all make it."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from ...schemas.errors import ConfigError
from .loss import Targets, chosen_logits, label_weights, weighted_sum

NOT_FOR_THE_MODEL = ("labels",)
"""Columns of a batch that only the loss needs."""


class Forward:
    """Calls a model so that its loss is a sum over trained tokens, divided by what the whole step counts.

    Args:
        bare: the model of transformers, not wrapped: its signature says what it takes.
        fused: a kernel has been put into the model that makes the loss where the logits would be.
        every_position: compute the logits of all positions, so that shapes never change.
    """

    def __init__(self, bare: Any, *, fused: bool = False, every_position: bool = False) -> None:
        self.fused = fused
        named = inspect.signature(_transformers_model(bare).forward).parameters
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
        """This micro-batch's part of the step's loss: all parts, of all ranks, add up to it.

        Args:
            units: what the whole step counts: trained tokens, or documents.
            share: of this micro-batch in means over all of the step's, 1 / (ranks · micro-batches): a mixture of
                experts' auxiliary loss is such a mean.
        """
        if not self.fused:
            logits, auxiliary = self._outputs(model, batch, wanted)
            loss = weighted_sum(logits, wanted) / units
        else:
            inputs = self._inputs(batch)
            shape = batch["labels"].shape
            if wanted.weights is not None:
                inputs["loss_weights"] = label_weights((shape[0], shape[1]), wanted)
            outputs = model(**inputs, labels=batch["labels"], num_items_in_batch=units)
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
                "take another model, or batching: padded"
            )
        return inputs

    def _of_experts(self, outputs: Any) -> torch.Tensor | None:
        found = outputs.get("aux_loss") if self._auxiliary and isinstance(outputs, dict) else None
        return None if found is None else self._auxiliary * found


def _transformers_model(model: Any) -> Any:
    """Within PEFT, whose own forward takes anything."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model
