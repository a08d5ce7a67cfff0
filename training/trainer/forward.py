"""One forward pass of the model that trains, as the trainer, the evaluation and the probe all make it."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu

from ..attention.apply import unwrap
from .fused_loss import FusedLoss
from .loss import Targets, token_losses

MIN_BYTES = 64 << 10
"""Smaller tensors are not offloaded: moving them costs more than it saves."""


class Forward:
    """Calls a model so that its loss is a sum over trained tokens, divided by what the whole step counts.

    Args:
        bare: the model of transformers, not wrapped: its signature says what it takes.
        fused: what computes the loss in the model's head; None for a model that gives logits.
        every_position: compute the logits of all positions, so that shapes never change.
    """

    def __init__(self, bare: Any, *, fused: FusedLoss | None = None, every_position: bool = False) -> None:
        self.fused = fused
        self._keeps = "logits_to_keep" in inspect.signature(unwrap(bare).forward).parameters and not every_position
        self._auxiliary = float(getattr(bare.config, "router_aux_loss_coef", 0) or 0)

    @property
    def gives_token_losses(self) -> bool:
        """Whether `loss` knows the loss of each token."""
        return self.fused is None or self.fused.gives_token_losses

    def logits(self, model: Any, batch: Mapping[str, Any], wanted: Targets) -> torch.Tensor:
        """(n, V): the logits that predict the trained tokens. `batch` and `wanted` are on the model's device."""
        return self._logits(self._outputs(model, batch, wanted), wanted)

    def loss(
        self,
        model: Any,
        batch: Mapping[str, Any],
        wanted: Targets,
        units: torch.Tensor,
        *,
        share: float,
        keep: Callable[[torch.Tensor], None] | None = None,
    ) -> torch.Tensor:
        """This micro-batch's part of the step's loss. The parts of all micro-batches and ranks add up to it.

        Args:
            units: number of trained tokens in the whole step, or the sum of their weights.
            share: 1 / (ranks · micro-batches), this micro-batch's weight in a mean over the step's; the
                auxiliary loss of a mixture of experts is such a mean.
            keep: takes (n,) the loss of each trained token, float32, if they are known.
        """
        if self.fused is None:
            outputs = self._outputs(model, batch, wanted)
            losses = token_losses(self._logits(outputs, wanted), wanted.tokens)
            if keep is not None:
                keep(losses.detach())
            loss = wanted.total(losses) / units
            return loss if (auxiliary := self._of_experts(outputs)) is None else loss + auxiliary * share
        with self.fused.of(wanted, units) as token_losses_of:
            outputs = model(**{key: value for key, value in batch.items() if key != "loss_weights"})
            if keep is not None and (found := token_losses_of()) is not None:
                keep(found)
        loss = outputs["loss"]
        # The model has added its auxiliary loss in full.
        return loss if (auxiliary := self._of_experts(outputs)) is None else loss + auxiliary * (share - 1)

    def _outputs(self, model: Any, batch: Mapping[str, Any], wanted: Targets) -> Any:
        inputs = {key: value for key, value in batch.items() if key not in ("labels", "loss_weights")}
        return model(**inputs, **({"logits_to_keep": wanted.index} if self._keeps else {}))

    def _logits(self, outputs: Any, wanted: Targets) -> torch.Tensor:
        logits: torch.Tensor = outputs["logits"][0]
        return logits if self._keeps else logits[wanted.index]

    def _of_experts(self, outputs: Any) -> torch.Tensor | None:
        found = outputs.get("aux_loss") if self._auxiliary else None
        return None if found is None else self._auxiliary * found


@contextmanager
def offloaded(model: nn.Module, *, min_bytes: int = MIN_BYTES) -> Iterator[None]:
    """A context for the forward pass: tensors saved for the backward pass move to host memory, page-locked on CUDA.

    Args:
        model: its parameters stay on the device, also as transposed views.
    """
    weights = frozenset(parameter.untyped_storage().data_ptr() for parameter in model.parameters())
    hooks = save_on_cpu(pin_memory=True)
    move = hooks.pack_hook

    def pack(tensor: torch.Tensor) -> tuple[torch.device, torch.Tensor]:
        # FSDP's gathered parameters are not the model's own.
        gathered = isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)
        if gathered or tensor.nbytes < min_bytes or tensor.untyped_storage().data_ptr() in weights:
            return tensor.device, tensor
        packed: tuple[torch.device, torch.Tensor] = move(tensor)
        return packed

    hooks.pack_hook = pack
    with hooks:
        yield
