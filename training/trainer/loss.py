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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.nn import functional

from ...schemas.errors import ConfigError
from ..attention.kernels import HALF
from ..attention.model_parts import unwrap
from ..attention.probe_setup import is_compiled
from ..targets import Targets, token_losses

_LOG = logging.getLogger(__name__)
_MAX_CHUNKS = 8
"""Most chunks of the chunked loss in bf16 and fp16."""
_MIN_CHUNK_ROWS = 512
"""Fewest rows of such a chunk."""
MIN_BYTES = 64 << 10
"""Smaller tensors are not offloaded: moving them costs more than it saves."""
_SHAPED = ("logits_scaling", "logit_scale", "lm_head_multiplier", "final_logit_softcapping")
"""Keys of models that change their logits between head and loss."""
_COMPARED = 64
"""Tokens whose fused loss is compared with the plain one before the first step."""
Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor], torch.Tensor]
"""`kernel(hidden (n, H), weight (V, H), bias (V,), tokens (n,))` → the sum of their cross-entropies."""


class Forward:
    """Calls a model so that its loss is a sum over trained tokens, divided by what the whole step counts.

    Args:
        bare: the model of transformers, not wrapped: its signature says what it takes.
        fused: what computes the loss in the model's head; None for a model that gives logits.
        every_position: compute the logits of all positions, so that shapes never change.
    """

    def __init__(self, bare: Any, *, fused: "FusedHead | None" = None, every_position: bool = False) -> None:
        self.fused = fused
        self._is_compared = fused is None
        self._keeps_logits = (
            "logits_to_keep" in inspect.signature(unwrap(bare).forward).parameters and not every_position
        )
        self._auxiliary = float(getattr(bare.config, "router_aux_loss_coef", 0) or 0)
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
        loss = total / units
        return loss if auxiliary is None else loss + self._auxiliary * auxiliary * share

    def _sum(
        self, model: Any, batch: Mapping[str, Any], targets: Targets, fused: "FusedHead | None"
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The sum of the tokens' losses, each times its weight; and the mean auxiliary loss, if there is one."""
        if fused is None or targets.weights is not None:
            outputs = self._outputs(model, batch, targets)
            losses = token_losses(self._logits(outputs, targets), targets.tokens)
            total = losses.sum() if targets.weights is None else (losses * targets.weights).sum()
        else:
            with fused.of(targets):
                outputs = self._outputs(model, batch, targets)
            total = outputs["logits"].sum() * len(targets.tokens)
        return total, outputs.get("aux_loss") if self._auxiliary else None

    def _compare(self, model: Any, batch: Mapping[str, Any], targets: Targets) -> None:
        """Compute the loss of some tokens in both ways, with the same random numbers, and draw none.

        A batch may have no trained tokens, as those that fill up the last step: then its first tokens are predicted,
        because nothing is shown by none, and all ranks must compare in the same step.
        """
        assert self.fused is not None
        compared = Targets(targets.index[:_COMPARED], targets.tokens[:_COMPARED])
        if not len(compared.tokens):
            tokens = batch["input_ids"][0, 1 : _COMPARED + 1]
            positions = torch.arange(len(tokens), device=tokens.device)
            compared = Targets(positions, tokens.to(targets.tokens.device))
        plain = self._sum_alone(model, batch, compared, None)
        fused = self._sum_alone(model, batch, compared, self.fused)
        if not torch.allclose(fused, plain, rtol=1e-2, atol=1e-3):  # bfloat16 rounds by less
            raise ConfigError(
                f"loss_kernel: {self.fused.name} does not serve {self._name}: it gives a loss of {fused.item():.6g} "
                f"where the plain one is {plain.item():.6g}; take none"
            )
        self._is_compared = True
        forget_compiled(model)

    def _sum_alone(
        self, model: Any, batch: Mapping[str, Any], targets: Targets, fused: "FusedHead | None"
    ) -> torch.Tensor:
        """float32 (): the sum of the tokens' losses, without a gradient; random generators are left as they were."""
        device = targets.tokens.device
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            return self._sum(model, batch, targets, fused)[0].float()

    def _outputs(self, model: Any, batch: Mapping[str, Any], targets: Targets) -> Any:
        inputs = {key: value for key, value in batch.items() if key not in ("labels", "loss_weights")}
        if self._keeps_logits:
            inputs["logits_to_keep"] = targets.index
        return model(**inputs)

    def _logits(self, outputs: Any, targets: Targets) -> torch.Tensor:
        logits: torch.Tensor = outputs["logits"][0]
        return logits if self._keeps_logits else logits[targets.index]


def forget_compiled(model: Any) -> None:
    """Drop what was compiled so far, if the model is compiled: call it after passes of another kind than training's.

    torch compiles a function for so many kinds of inputs only (`torch._dynamo.config.recompile_limit`, 8), and runs it
    uncompiled for further ones. The probe and the comparison of losses would leave too few for the steps.
    """
    if is_compiled(model):
        torch.compiler.reset()


def fuse_loss(model: nn.Module, kind: str, *, cuda: bool) -> "FusedHead | None":
    """Prepare a causal language model to compute its loss in its head; None where it computes logits.

    Call it before the model is compiled or wrapped by DDP or FSDP; a PEFT model may be given as it is.

    Args:
        kind: `none`: the logits of all trained tokens at once. `chunked`: torch's function. `liger`: Liger's, on a GPU.
            `auto`: `chunked` on a GPU if the model's head allows it, else `none`. All give the same, up to rounding.

    Raises:
        ConfigError: the kind cannot serve this model or machine. `auto` never raises.
    """
    from transformers.integrations import is_deepspeed_zero3_enabled

    if kind == "none" or (kind == "auto" and not cuda):
        return None
    base: Any = unwrap(model)
    head = base.get_output_embeddings()
    text_config = base.config.get_text_config()
    changed = [name for name in _SHAPED if getattr(text_config, name, None) not in (None, 1, 1.0)]
    if is_deepspeed_zero3_enabled():
        obstacle = "under ZeRO-3 the head's weights are available only while the head itself runs"
    elif kind != "liger" and not hasattr(functional, "linear_cross_entropy"):
        obstacle = f"torch {torch.__version__} has no linear_cross_entropy"
    elif type(head) is not nn.Linear:
        obstacle = f"its head is {type(head).__name__}, not a plain nn.Linear (adapted or quantised heads differ)"
    elif changed:
        obstacle = f"it changes its logits before the loss ({', '.join(changed)})"
    else:
        return FusedHead(head, "liger" if kind == "liger" else "chunked")
    if kind != "auto":
        raise ConfigError(f"loss_kernel: {kind} cannot serve {type(base).__name__}: {obstacle}; take none or auto")
    _LOG.info("loss_kernel: none, because %s", obstacle)
    return None


class FusedHead:
    """A model's head, which within `of` returns the mean of the losses in the place of logits.

    It is computed while the head runs, because only then do all shards of its weights exist on a rank.
    """

    def __init__(self, head: Any, name: str) -> None:
        self.name = name
        self._kernel = _liger() if name == "liger" else _torch
        self._head = head
        self._project = head.forward
        self._targets: Targets | None = None
        head.forward = self._forward

    @contextmanager
    def of(self, targets: Targets) -> Iterator[None]:
        """A context in which the model's logits are (1, 1, 1): the mean loss of these tokens."""
        self._targets = targets
        try:
            yield
        finally:
            self._targets = None

    def _forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._project(hidden) if self._targets is None else self._lose(hidden, self._targets)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _lose(self, hidden: torch.Tensor, targets: Targets) -> torch.Tensor:
        device = hidden.device.type
        rows = hidden.flatten(0, -2)
        # In the dtype in which a linear layer would compute.
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else self._head.weight.dtype
        if len(rows) != len(targets.tokens):  # the model gives all positions to its head
            rows = rows[targets.index]
        bias = None if self._head.bias is None else self._head.bias.to(dtype)
        if not len(rows):
            # Liger divides by the number of rows. The sum over none is 0 and so are its gradients: they must exist,
            # because all ranks wait for them.
            parts = [rows, self._head.weight[:0]]
            if bias is not None:
                parts.append(bias[:0])
            return torch.stack([part.float().sum() for part in parts]).sum().view(1, 1, 1)
        total = self._kernel(rows.to(dtype), self._head.weight.to(dtype), bias, targets.tokens).float()
        return (total / max(1, len(rows))).view(1, 1, 1)  # wrappers may cast it to float16, which cannot hold the sum


def chunked_options(rows: int, dtype: torch.dtype) -> Any:
    """How torch's `linear_cross_entropy` divides its rows into chunks.

    In bf16 and fp16 it adds the head's gradient up in that dtype, chunk by chunk, whatever its `acc_policy`. Errors in
    bf16, relative to float64, measured on a CPU: 1.7e-3 in one chunk, 2.1e-3 in 2, 3.5e-3 in 8, 9.3e-3 in 64; its own
    choice on CUDA is 128 for 16,384 rows and 152,000 words. Accumulated in float32 it would be 2.0e-3, but torch has no
    such choice, and a sum of that kind takes 4 bytes for each weight of the head. So there are at most `_MAX_CHUNKS`.

    Memory of the forward and backward pass, measured on a CPU as the growth of the process: for 8,192 tokens and 16,384
    words in bf16, whose logits are 256 MiB, it is 1,542 MiB with the plain loss, 83 MiB in 8 chunks, 35 MiB in 32.
    """
    if dtype not in HALF:
        return nn.LinearCrossEntropyOptions()
    chunk_rows = max(_MIN_CHUNK_ROWS, -(-rows // _MAX_CHUNKS))
    return nn.LinearCrossEntropyOptions(chunking_method=None, batch_chunk_size=chunk_rows)


def _torch(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, tokens: torch.Tensor) -> Any:
    options = chunked_options(len(hidden), hidden.dtype)
    return functional.linear_cross_entropy(hidden, weight, tokens, linear_bias=bias, reduction="sum", options=options)


def _liger() -> Kernel:
    try:
        from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy as kernel
    except ImportError as error:
        raise ConfigError(
            f"loss_kernel: liger needs a GPU and pip install 'packtrain[liger]': {error}. Or take chunked"
        ) from error

    def sum_losses(
        hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, tokens: torch.Tensor
    ) -> torch.Tensor:
        # Liger, too, would add the head's gradient up in bf16, chunk by chunk.
        total: torch.Tensor = kernel(hidden, weight, tokens, bias=bias, reduction="sum", accum_dtype=torch.float32)
        return total

    return sum_losses


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
