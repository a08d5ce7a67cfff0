"""The loss of one forward pass, as the trainer, the evaluation and `explain-loss` make it: a part of the mean over all
trained tokens of a step, over every rank and micro-batch.

1. Before a batch goes to the device, `find_targets` says which positions predict a trained label: often a third.
   Only these go through the model's head and the cross-entropy.
2. Each micro-batch gives its sum of cross-entropies, divided by the trained tokens of the *whole step* on all ranks.
   Summed over micro-batches and ranks that is the mean; a mean of means would weight the tokens of short batches more.
3. With loss weights, both are weighted: the sum of weight times cross-entropy, over the sum of weights.
4. With a fused kernel (torch's `linear_cross_entropy`, or Liger's) logits never exist at once: the head returns the
   loss. That works for plain heads, a matrix between hidden states and loss; before the first step it is compared with
   the plain loss. Other heads (a softcap, a scale, adapters) and batches with loss weights take the plain loss.

Legend: T tokens of a batch, n of them trained, V the vocabulary.
"""

import inspect
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu

from ...schemas.errors import ConfigError
from ..attention.probe_setup import is_compiled
from ..models.model_parts import unwrap
from ..targets import Targets, token_losses
from .heads import ChunkedHead, FusedHead

_LOG = logging.getLogger(__name__)
MIN_BYTES = 64 << 10
"""Smaller tensors are not offloaded: moving them costs more than it saves."""
_COMPARED = 64
"""Tokens whose fused loss is compared with the plain one before the first step."""


class Forward:
    """Calls a model so that its loss is a sum over trained tokens, divided by what the whole step counts.

    Args:
        bare: the model of transformers, not wrapped: its signature says what it takes.
        fused: what computes the loss in the model's head; None for a model that gives logits.
        every_position: compute the logits of all positions, so that shapes never change.
        chunked: the model's head, which can compute the losses of single tokens in chunks; None if it cannot, or
            batches are too small for that.
    """

    def __init__(
        self,
        bare: Any,
        *,
        fused: FusedHead | None = None,
        every_position: bool = False,
        chunked: ChunkedHead | None = None,
    ) -> None:
        self.fused = fused
        self.chunked = chunked
        self._is_compared = fused is None and chunked is None
        """Whether losses of the head were compared with plain ones; also true if the head gives no losses."""
        self._keeps_logits = (
            "logits_to_keep" in inspect.signature(unwrap(bare).forward).parameters and not every_position
        )
        """Whether the model takes `logits_to_keep`, and computes the logits of trained tokens alone."""
        self._auxiliary_factor = float(getattr(bare.config, "router_aux_loss_coef", 0) or 0)
        """The factor of the auxiliary loss of a mixture of experts; 0 if the model has none."""
        self._name = type(unwrap(bare)).__name__

    def logits(self, model: Any, batch: Mapping[str, Any], targets: Targets) -> torch.Tensor:
        """(n, V): the logits that predict the trained tokens. `batch` and `targets` are on the model's device."""
        return self._logits(self._outputs(model, batch, targets), targets)

    def loss(
        self, model: Any, batch: Mapping[str, Any], targets: Targets, units: torch.Tensor, *, share: float
    ) -> torch.Tensor:
        """This micro-batch's part of the step's loss. The parts of all micro-batches and ranks add up to it.

        Args:
            units: number of trained tokens in the whole step, or the sum of their weights.
            share: 1 / (ranks · micro-batches), this micro-batch's weight in a mean over the step's; the
                auxiliary loss of a mixture of experts is such a mean.

        Raises:
            ConfigError: on the first call, if the fused loss is not the plain one.
        """
        if not self._is_compared and targets.weights is None:
            self._compare(model, batch, targets)
        total, auxiliary = self._sum(model, batch, targets, self.fused)
        return self.with_auxiliary(total / units, auxiliary, share)

    def token_losses(
        self, model: Any, batch: Mapping[str, Any], targets: Targets
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(n,) the cross-entropies of the trained tokens; and the mean auxiliary loss, None if the model has none."""
        chunked = self.chunked
        if chunked is not None and not self._is_compared:
            self._compare_chunks(model, batch, targets)
        if chunked is not None and chunked.is_worth(len(targets.tokens)):
            with chunked.of(targets):
                outputs = self._outputs(model, batch, targets)
            losses = outputs["logits"].flatten()
        else:
            outputs = self._outputs(model, batch, targets)
            losses = token_losses(self._logits(outputs, targets), targets.tokens)
        return losses, self._auxiliary_loss(outputs)

    def scores(
        self, model: Any, batch: Mapping[str, Any], places: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(D,) the scores of a reward model at some places; and the mean auxiliary loss, or None if it has none.

        Args:
            places: int64 (D,) positions in the tokens of all rows end to end.
        """
        outputs = model(**{key: value for key, value in batch.items() if key not in ("labels", "loss_weights")})
        scores: torch.Tensor = outputs["logits"].flatten()[places]
        return scores, self._auxiliary_loss(outputs)

    def with_auxiliary(self, loss: torch.Tensor, auxiliary: torch.Tensor | None, share: float) -> torch.Tensor:
        """A micro-batch's part of the step's loss, with its share of the mean auxiliary loss."""
        return loss if auxiliary is None else loss + self._auxiliary_factor * auxiliary * share

    def _auxiliary_loss(self, outputs: Any) -> torch.Tensor | None:
        """The mean auxiliary loss that a model returned; None if it has no such loss, or gives it no weight."""
        return outputs.get("aux_loss") if self._auxiliary_factor else None

    def _sum(
        self, model: Any, batch: Mapping[str, Any], targets: Targets, fused: FusedHead | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The sum of the tokens' losses, each times its weight; and the mean auxiliary loss, None if there is none."""
        # A fused head gives the mean of all losses, in which each token weighs the same, in the place of logits.
        if fused is None or targets.weights is not None:
            outputs = self._outputs(model, batch, targets)
            losses = token_losses(self._logits(outputs, targets), targets.tokens)
            total = losses.sum() if targets.weights is None else (losses * targets.weights).sum()
        else:
            with fused.of(targets):
                outputs = self._outputs(model, batch, targets)
            total = outputs["logits"].sum() * len(targets.tokens)  # one number, the mean
        return total, self._auxiliary_loss(outputs)

    def _compare(self, model: Any, batch: Mapping[str, Any], targets: Targets) -> None:
        """Compare the fused loss of some tokens with the plain one. Both passes draw the same random numbers, and leave
        the generators as they were.

        Raises:
            ConfigError: the losses differ.
        """
        assert self.fused is not None
        compared = _some_targets(batch, targets)
        plain = self._sum_alone(model, batch, compared, fused=None)
        fused = self._sum_alone(model, batch, compared, fused=self.fused)
        if not torch.allclose(fused, plain, rtol=1e-2, atol=1e-3):  # bfloat16 rounds by less
            raise ConfigError(
                f"loss_kernel: {self.fused.name} does not serve {self._name}: it gives a loss of {fused.item():.6g} "
                f"where the plain one is {plain.item():.6g}; take none"
            )
        self._is_compared = True
        forget_compiled(model)

    def _compare_chunks(self, model: Any, batch: Mapping[str, Any], targets: Targets) -> None:
        """Compare the losses of some tokens in chunks with the plain ones. Every rank does so in the same step, whether
        its own batch needs chunks or not, because passes of a sharded model are collective.

        Raises:
            ConfigError: the losses differ.
        """
        assert self.chunked is not None
        compared = _some_targets(batch, targets)
        with _without_traces(compared):
            plain = token_losses(self._logits(self._outputs(model, batch, compared), compared), compared.tokens)
            with self.chunked.of(compared):
                chunked = self._outputs(model, batch, compared)["logits"].flatten()
        if not torch.allclose(chunked.float(), plain.float(), rtol=1e-2, atol=5e-2):  # bfloat16 rounds by less
            raise ConfigError(
                f"losses of single tokens cannot be computed in chunks for {self._name}: they differ from the plain "
                f"ones by up to {(chunked - plain).abs().max().item():.3g}; set loss_kernel: none"
            )
        self._is_compared = True
        forget_compiled(model)

    def _sum_alone(
        self, model: Any, batch: Mapping[str, Any], targets: Targets, fused: FusedHead | None
    ) -> torch.Tensor:
        """float32 (): the sum of the tokens' losses, without a gradient; random generators are left as they were."""
        with _without_traces(targets):
            return self._sum(model, batch, targets, fused)[0].float()  # without the auxiliary loss, which is second

    def _outputs(self, model: Any, batch: Mapping[str, Any], targets: Targets) -> Any:
        """What the model returns for a batch. It gets no labels, as it would compute a loss of its own."""
        inputs = {key: value for key, value in batch.items() if key not in ("labels", "loss_weights")}
        if self._keeps_logits:
            inputs["logits_to_keep"] = targets.index
        return model(**inputs)

    def _logits(self, outputs: Any, targets: Targets) -> torch.Tensor:
        """(n, V): the logits that predict the trained tokens, among those that the model returned."""
        logits: torch.Tensor = outputs["logits"].flatten(0, 1)
        return logits if self._keeps_logits else logits[targets.index]


def _some_targets(batch: Mapping[str, Any], targets: Targets) -> Targets:
    """At most `_COMPARED` of a batch's targets, without weights. A batch that fills up the last step has none: then its
    first tokens, whatever their labels, because all ranks must compare in the same step, and no token shows nothing.
    """
    if len(targets.tokens):
        return Targets(targets.index[:_COMPARED], targets.tokens[:_COMPARED])
    tokens = batch["input_ids"][0, 1 : _COMPARED + 1]  # position 0 predicts token 1, and so on
    return Targets(torch.arange(len(tokens), device=tokens.device), tokens.to(targets.tokens.device))


@contextmanager
def _without_traces(targets: Targets) -> Iterator[None]:
    """A context without gradients, after which random generators are as they were."""
    device = targets.tokens.device
    with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield


def forget_compiled(model: Any) -> None:
    """Drop what was compiled so far, if the model is compiled: call it after passes of another kind than training's.

    torch compiles a function for so many kinds of inputs only (`torch._dynamo.config.recompile_limit`, 8), and runs it
    uncompiled for further ones. The probe and the comparison of losses would leave too few for the steps.
    """
    if is_compiled(model):
        torch.compiler.reset()


@contextmanager
def offloaded(model: nn.Module, *, min_bytes: int = MIN_BYTES) -> Iterator[None]:
    """A context for the forward pass: tensors saved for the backward pass move to host memory, page-locked on CUDA.

    Args:
        model: its parameters stay on the device, also as transposed views.
    """
    weights = frozenset(parameter.untyped_storage().data_ptr() for parameter in model.parameters())
    # torch's hooks would move every saved tensor, weights among them, which stay on the device: so its own hook is
    # called for the others alone.
    hooks = save_on_cpu(pin_memory=True)
    move = hooks.pack_hook

    def pack(tensor: torch.Tensor) -> tuple[torch.device, torch.Tensor]:
        # What torch's hook returns, too: the device that the tensor comes back to, and the tensor that is kept until
        # then, moved or as it is.
        # FSDP's gathered parameters are not the model's own tensors; a view of one has it as its `_base`.
        gathered = isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)
        if gathered or tensor.nbytes < min_bytes or tensor.untyped_storage().data_ptr() in weights:
            return tensor.device, tensor
        packed: tuple[torch.device, torch.Tensor] = move(tensor)
        return packed

    hooks.pack_hook = pack
    with hooks:
        yield
