"""Where the chunked loss is put into a model: between its last hidden state and its loss function.

A transformers model ends in three moves: `logits = lm_head(hidden)`, sometimes a scale or a softcap, then
`loss = self.loss_function(logits=logits, labels=labels, ...)`. The first and the last are replaced on the very model,
while labels are given:

1. the head keeps the hidden states and the labels, computes the loss with a kernel, and hands on logits of no
   positions, so that whatever stands in between costs nothing;
2. the loss function hands out what the head has found.

Everything else of the model's forward stays, such as the auxiliary losses of mixtures of experts. Positions whose next
label is −100 are left out before the head: with a mask over prompts that is most of its work. Without labels the model
is what it was.

What stands in between is known from the configuration (`Shaping`), and checked on the first call: the head hands on a
few real logits, and what arrives at the loss function must be what the kernel computes with.
"""

import functools
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from ...schemas.errors import ConfigError
from ...schemas.rows import IGNORE_INDEX
from .cross_entropy import Kernel, Shaping, chunked_cross_entropy

_CHECKED = 4
"""Positions whose logits are compared on the first call."""


class LossKernelKind(StrEnum):
    """How the loss of the head is computed. All are the same number, to rounding."""

    AUTO = "auto"
    """`chunked` where the model allows it, else `none`."""
    NONE = "none"
    """As the model does it: all logits at once."""
    CHUNKED = "chunked"
    """packtrain's own, on any device."""
    LIGER = "liger"
    """Liger's fused kernel: CUDA, and the package liger-kernel."""
    TORCH = "torch"
    """`torch.nn.functional.linear_cross_entropy`, from torch 2.13 on."""


@dataclass(slots=True)
class LossKernel:
    """What was put into a model."""

    name: str
    """A member of `LossKernelKind`, never `auto`."""
    reason: str
    _undo: Callable[[], None] = field(default=lambda: None, repr=False)

    def undo(self) -> None:
        """Make the model what it was."""
        self._undo()


@dataclass(slots=True)
class _Call:
    """What one forward hands from its beginning to its head, and from there to its loss function."""

    labels: torch.Tensor
    """(B, T) unshifted, or already shifted."""
    shifted: bool
    weights: torch.Tensor | None
    """(B, T) like the labels."""
    check: bool
    loss: torch.Tensor | None = None
    count: torch.Tensor | None = None
    expected: torch.Tensor | None = None


def use_fused_loss(model: nn.Module, kind: str = "auto", *, skip_untrained: bool = True) -> LossKernel:
    """Have a causal language model compute its loss without holding all logits.

    With `labels`, its forward then gives a loss equal to the plain one (Σ of the tokens' losses over
    `num_items_in_batch`, or their mean; 0 where nothing is trained) and no logits. It takes `loss_weights` as well:
    float (B, T), what the loss of the label at each place counts. Without `labels` nothing changes.

    Call it before the model is compiled or wrapped by DDP or FSDP; a PEFT model may be given as it is.

    Args:
        kind: see `LossKernelKind`.
        skip_untrained: leave positions without a label out before the head. That needs to know their number, which
            costs a synchronisation with the device; off for batches of fixed shapes.

    Raises:
        ConfigError: the kind does not exist, or cannot serve this model or machine. `auto` never raises.
    """
    try:
        wanted = LossKernelKind(kind)
    except ValueError:
        raise ConfigError(f"loss_kernel={kind!r}: choose one of {', '.join(LossKernelKind)}") from None
    if wanted is LossKernelKind.NONE:
        return LossKernel("none", "as asked for")
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    obstacle = _obstacle(base)
    if obstacle is not None:
        if wanted is LossKernelKind.AUTO:
            return LossKernel("none", obstacle)
        raise ConfigError(f"loss_kernel: {wanted} cannot serve {type(base).__name__}: {obstacle}; take none or auto")
    shaping = _shaping(base.config)
    kernel = _kernel(LossKernelKind.CHUNKED if wanted is LossKernelKind.AUTO else wanted, shaping)
    undo = _Patch(base, kernel, shaping, skip_untrained).apply()
    name = "chunked" if wanted is LossKernelKind.AUTO else wanted.value
    return LossKernel(name, f"{name} cross-entropy: logits are never held all at once", undo)


def _obstacle(model: nn.Module) -> str | None:
    """Why the head of this model cannot be taken over; None where it can."""
    if _zero3():
        return "under ZeRO-3 the head's weights are there only while the head itself runs"
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if type(head) is not nn.Linear:
        return (
            f"its head is {type(head).__name__}, not a plain nn.Linear (adapted or quantised heads compute otherwise)"
        )
    code = getattr(inspect.unwrap(type(model).forward), "__code__", None)
    if code is None or "loss_function" not in code.co_names:
        return "its forward does not compute the loss through self.loss_function"
    loss = getattr(model.loss_function, "__name__", type(model.loss_function).__name__)
    if loss != "ForCausalLMLoss":
        return f"its loss is {loss}, not that of a causal language model"
    return None


def _zero3() -> bool:
    """Whether DeepSpeed will shard, or has sharded, the weights themselves."""
    if (
        os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true"
        and os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE") == "3"
    ):
        return True
    from transformers.integrations import is_deepspeed_zero3_enabled

    return bool(is_deepspeed_zero3_enabled())


def _shaping(config: Any) -> Shaping:
    """What stands between head and loss, as far as configurations of transformers say it."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    scale = 1.0
    if getattr(text, "logits_scaling", None):  # Granite divides
        scale /= text.logits_scaling
    for name in ("logit_scale", "lm_head_multiplier"):  # Cohere and Falcon-H1 multiply
        scale *= getattr(text, name, None) or 1.0
    return Shaping(scale, getattr(text, "final_logit_softcapping", None))


def _kernel(kind: LossKernelKind, shaping: Shaping) -> Kernel:
    if kind is LossKernelKind.CHUNKED:
        return chunked_cross_entropy
    if shaping.scale != 1.0 or (kind is LossKernelKind.TORCH and shaping.softcap is not None):
        raise ConfigError(f"loss_kernel: {kind} knows no {shaping}, which this model needs; take chunked")
    return _torch_kernel() if kind is LossKernelKind.TORCH else _liger_kernel()


def _torch_kernel() -> Kernel:
    fused = getattr(nn.functional, "linear_cross_entropy", None)
    if fused is None:
        raise ConfigError(
            f"loss_kernel: torch needs torch 2.13, which brings linear_cross_entropy; this is {torch.__version__}. "
            "Take chunked, or pip install 'torch>=2.13'"
        )

    def kernel(
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        weights: torch.Tensor | None,
        shaping: Shaping,
    ) -> torch.Tensor:
        options = nn.LinearCrossEntropyOptions()
        arguments = {"linear_bias": bias, "ignore_index": IGNORE_INDEX, "options": options}
        hidden, weight = _alike(hidden, weight)
        if weights is None:
            loss: torch.Tensor = fused(hidden, weight, targets, reduction="sum", **arguments).float()
            return loss
        losses = fused(hidden, weight, targets, reduction="none", **arguments).float()
        return (losses * torch.where(targets == IGNORE_INDEX, 0.0, weights.float())).sum()

    return kernel


def _liger_kernel() -> Kernel:
    if find_spec("liger_kernel") is None or find_spec("triton") is None or not torch.cuda.is_available():
        missing = [name for name in ("liger_kernel", "triton") if find_spec(name) is None]
        what = f"{' and '.join(missing)} missing" if missing else "no CUDA device"
        raise ConfigError(
            f"loss_kernel: liger needs a CUDA device, triton and liger-kernel: {what}. Take chunked, or "
            "pip install 'packtrain[liger]' on a machine with a GPU"
        )
    from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

    def kernel(
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        weights: torch.Tensor | None,
        shaping: Shaping,
    ) -> torch.Tensor:
        if weights is not None:
            raise ConfigError(
                "loss_kernel: liger cannot weigh tokens, which loss: document needs; take loss_kernel: chunked"
            )
        hidden, weight = _alike(hidden, weight)
        loss: torch.Tensor = liger_fused_linear_cross_entropy(
            hidden,
            weight,
            targets,
            bias=bias,
            ignore_index=IGNORE_INDEX,
            reduction="sum",
            softcap=shaping.softcap,
            accum_dtype=torch.float32,
        )
        return loss

    return kernel


def _alike(hidden: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both in the dtype that a linear layer would compute in."""
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
    return hidden.to(dtype), weight.to(dtype)


class _Patch:
    """The three replaced methods of one model, and what they share."""

    def __init__(self, model: Any, kernel: Kernel, shaping: Shaping, skip_untrained: bool) -> None:
        self.model, self.kernel, self.shaping, self.skip_untrained = model, kernel, shaping, skip_untrained
        self.head = model.get_output_embeddings()
        self.call: _Call | None = None
        self.checked = False

    def apply(self) -> Callable[[], None]:
        """Replace them; returns what puts them back."""
        model, head = self.model, self.head
        forward, project, plain = model.forward, head.forward, model.loss_function
        forward_was = model.__dict__.get("forward")

        @functools.wraps(forward)
        def with_call(*args: Any, labels: torch.Tensor | None = None, **kwargs: Any) -> Any:
            weights = kwargs.pop("loss_weights", None)
            if labels is None:
                return forward(*args, **kwargs)
            shifted = kwargs.get("shift_labels")
            source = labels if shifted is None else shifted
            self.call = _Call(source, shifted is not None, weights, check=not self.checked)
            try:
                outputs = forward(*args, labels=labels, **kwargs)
            finally:
                self.call = None
            return _without_logits(outputs)

        def head_forward(hidden: torch.Tensor) -> torch.Tensor:
            return project(hidden) if self.call is None else self._lose(self.call, hidden, project)

        def loss_function(logits: torch.Tensor, labels: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            if self.call is None or self.call.loss is None:
                loss: torch.Tensor = plain(logits, labels, *args, **kwargs)
                return loss
            return self._found(self.call, logits, kwargs.get("num_items_in_batch"))

        model.forward, head.forward, model.loss_function = with_call, head_forward, loss_function

        def undo() -> None:
            del head.forward
            if forward_was is None:
                del model.forward
            else:
                model.forward = forward_was
            model.loss_function = plain

        return undo

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _lose(self, call: _Call, hidden: torch.Tensor, project: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """(B, P, V) logits of the P positions that are checked, which are none after the first call."""
        targets = call.labels.to(hidden.device)
        weights = None if call.weights is None else call.weights.to(hidden.device)
        if hidden.shape[:2] != targets.shape:
            raise ConfigError(
                f"loss_kernel: the head got hidden states of shape {tuple(hidden.shape)} for labels of shape "
                f"{tuple(targets.shape)}; do not pass logits_to_keep together with labels"
            )
        if not call.shifted:
            targets = nn.functional.pad(targets, (0, 1), value=IGNORE_INDEX)[:, 1:]
            weights = None if weights is None else nn.functional.pad(weights, (0, 1))[:, 1:]
        rows, flat = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)
        heavy = None if weights is None else weights.reshape(-1)
        trained = flat != IGNORE_INDEX
        call.count = trained.sum()
        if self.skip_untrained:
            kept = trained.nonzero()[:, 0]
            rows, flat = rows[kept], flat[kept]
            heavy = None if heavy is None else heavy[kept]
        # Of no rows the sum is 0, and so are the gradients: still there, for all ranks must have them.
        call.loss = self.kernel(rows, self.head.weight, self.head.bias, flat, heavy, self.shaping)
        with torch.no_grad():
            logits: torch.Tensor = project(hidden[:, : _CHECKED if call.check else 0].detach())
            call.expected = self.shaping(logits.float()) if call.check else None
        return logits

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _found(self, call: _Call, logits: torch.Tensor, items: torch.Tensor | int | None) -> torch.Tensor:
        """The loss that the head has left, over the number of items."""
        if call.expected is not None:
            # Models scale in their own precision, the kernel in float32.
            bound = (1e-4 if logits.dtype == torch.float32 else 2e-2) * float(call.expected.abs().max())
            same = logits.shape == call.expected.shape
            if not same or float((logits.detach().float() - call.expected).abs().max()) > bound:
                raise ConfigError(
                    f"loss_kernel: {type(self.model).__name__} changes its logits between head and loss in a way that "
                    f"is not known (known: {self.shaping}); take loss_kernel: none"
                )
            self.checked = True
        assert call.loss is not None
        assert call.count is not None
        if items is None:
            return call.loss / call.count.clamp_min(1)
        return call.loss / (items.to(call.loss.device) if isinstance(items, torch.Tensor) else items)


def _without_logits(outputs: Any) -> Any:
    """The model's outputs, less the logits, of which there are none."""
    if isinstance(outputs, dict):
        if "logits" in outputs:
            outputs["logits"] = None
        return outputs
    return (outputs[0], None, *outputs[2:])
