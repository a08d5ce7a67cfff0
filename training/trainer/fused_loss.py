"""The loss, computed inside the model's head, so that the logits of all tokens never exist at once.

Logits are the largest thing of a training step: tokens × vocabulary numbers, several times over. A transformers model
ends in `logits = lm_head(hidden)`, sometimes a scale or a softcap, then `loss = self.loss_function(logits, labels)`.
The first and the last are replaced, and act only within `FusedLoss.of`:

1. the head computes the loss of the trained positions from the hidden states, and returns logits of no positions;
2. the loss function returns the loss that the head computed.

The loss is torch's `linear_cross_entropy`, or Liger's. A head with a softcap or a scale (Gemma 2, Granite, Cohere),
which neither supports, torch before 2.13, and batches with loss weights take checkpointed chunks of plain
cross-entropy, which project twice. Without them Gemma 2, with 256,000 ids, needs 16 GB for the logits of 8,192 tokens
and their gradient.

What stands between head and loss is read from the configuration (`Shaping`) and compared with real logits on the first
call.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from inspect import unwrap
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ...schemas.errors import ConfigError
from .loss import Targets

_LOG = logging.getLogger(__name__)
_COMPARED = 4
"""Number of positions whose logits are compared on the first call."""
CHUNK_BYTES = 256 << 20
"""Bytes of one chunk of float32 logits."""

Losses = tuple[torch.Tensor, torch.Tensor | None]
"""The sum of the targets' cross-entropies, float32, each times its weight; and (n,) each of them without weights,
detached, if the kernel gives them."""
Kernel = Callable[[torch.Tensor, nn.Linear, Targets], Losses]
"""`kernel(hidden (n, H), head, targets)`."""


KINDS = ("auto", "none", "chunked", "liger")
"""`none`: all logits at once, as the model computes them. `chunked`: torch's function, or checkpointed chunks. `liger`:
Liger's kernel, on a GPU. `auto`: `chunked` if the model allows it, else `none`. All give the same, up to rounding."""


@dataclass(frozen=True, slots=True)
class Shaping:
    """What a model does to its logits before the loss: it applies the scale first, then the softcap."""

    scale: float = 1.0
    softcap: float | None = None
    """Logits become cap · tanh(logits / cap)."""

    @classmethod
    def of(cls, config: Any) -> "Shaping":
        """Read scale and softcap from a transformers configuration, as far as it names them."""
        text = config.get_text_config()
        scale = 1.0 / (getattr(text, "logits_scaling", None) or 1.0)  # Granite divides
        for name in ("logit_scale", "lm_head_multiplier"):  # Cohere and Falcon-H1 multiply
            scale *= getattr(text, name, None) or 1.0
        return cls(scale, getattr(text, "final_logit_softcapping", None))

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        """Apply scale and softcap to logits."""
        logits = logits if self.scale == 1.0 else logits * self.scale
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap


def fuse_loss(model: nn.Module, kind: str = "auto", token_losses: bool = False) -> "FusedLoss | None":
    """Prepare a causal language model to compute its loss in its head; None where it computes all logits.

    Call it before the model is compiled or wrapped by DDP or FSDP; a PEFT model may be given as it is.

    Args:
        token_losses: compute the loss of each token also where the kernel gives only their sum.

    Raises:
        ConfigError: the kind does not exist, or cannot serve this model or machine. `auto` never raises.
    """
    if kind not in KINDS:
        raise ConfigError(f"loss_kernel={kind!r}: choose one of {', '.join(KINDS)}")
    if kind == "none":
        return None
    base: Any = model.get_base_model() if hasattr(model, "get_base_model") else model
    if (obstacle := _obstacle(base)) is not None:
        if kind == "auto":
            _LOG.info("loss_kernel: none, because %s", obstacle)
            return None
        raise ConfigError(f"loss_kernel: {kind} cannot serve {type(base).__name__}: {obstacle}; take none or auto")
    shaping = Shaping.of(base.config)
    if kind == "liger":
        return FusedLoss(base, _liger_kernel(shaping), shaping, "liger", token_losses)
    if shaping == Shaping() and hasattr(functional, "linear_cross_entropy"):
        return FusedLoss(base, _torch_kernel, shaping, "chunked", token_losses)
    return FusedLoss(base, partial(_in_chunks, shaping=shaping), shaping, "chunked", True)


class FusedLoss:
    """The replaced head and loss function of one model."""

    def __init__(self, model: Any, kernel: Kernel, shaping: Shaping, name: str, token_losses: bool = False) -> None:
        self.name, self._kernel, self._shaping = name, kernel, shaping
        self.gives_token_losses = token_losses
        """Whether `of` gives the loss of each token."""
        self._model, self._head = type(model).__name__, model.get_output_embeddings()
        self._project, self._plain_loss = self._head.forward, model.loss_function
        self._wanted: tuple[Targets, torch.Tensor] | None = None
        self._loss = self._expected = None
        self._token_losses: torch.Tensor | None = None
        self._compared = False
        self._head.forward, model.loss_function = self._in_head, self._in_loss_function

    @contextmanager
    def of(self, wanted: Targets, units: torch.Tensor) -> Iterator[Callable[[], torch.Tensor | None]]:
        """A context in which the model's loss is that of these targets over `units`, without logits.

        The model must be called with labels, which only make it compute a loss. The context's value returns, after the
        call, (n,) the loss of each token, or None.
        """
        self._wanted = wanted, units
        try:
            yield lambda: self._token_losses
        finally:
            self._wanted = self._loss = self._expected = self._token_losses = None

    def _in_head(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._project(hidden) if self._wanted is None else self._lose(hidden)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _lose(self, hidden: torch.Tensor) -> torch.Tensor:
        """Keep the loss. (B, P, V) logits of the P positions that are compared: none after the first call."""
        assert self._wanted is not None
        wanted, units = self._wanted
        # The sum over no rows is 0 and so are its gradients: they must exist, because all ranks wait for them.
        rows = hidden.flatten(0, -2)[wanted.index]
        # No library's kernel takes weights with a single backward pass over them.
        kernel = self._kernel if wanted.weights is None else partial(_in_chunks, shaping=self._shaping)
        total, self._token_losses = kernel(rows, self._head, wanted)
        self._loss = total / units
        if self.gives_token_losses and self._token_losses is None:
            with torch.no_grad():
                self._token_losses = _in_chunks(rows.detach(), self._head, wanted, shaping=self._shaping)[1]
        with torch.no_grad():
            logits: torch.Tensor = self._project(hidden[:, : 0 if self._compared else _COMPARED].detach())
            self._expected = None if self._compared else self._shaping(logits.float())
        return logits

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _in_loss_function(self, logits: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if self._loss is None:
            loss: torch.Tensor = self._plain_loss(logits, *args, **kwargs)
            return loss
        if self._expected is not None:
            # Models scale in their own precision, the kernel in float32.
            bound = (1e-4 if logits.dtype == torch.float32 else 2e-2) * float(self._expected.abs().max())
            if not torch.allclose(logits.detach().float(), self._expected, rtol=0, atol=bound):
                raise ConfigError(
                    f"loss_kernel: {self._model} changes its logits between head and loss in a way that is not known "
                    f"(known: {self._shaping}); take loss_kernel: none"
                )
            self._compared = True
        return self._loss


def _obstacle(model: Any) -> str | None:
    """Why the loss cannot be computed from this model's head; None if it can."""
    from transformers.integrations import is_deepspeed_zero3_enabled

    if is_deepspeed_zero3_enabled():
        return "under ZeRO-3 the head's weights are available only while the head itself runs"
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if type(head) is not nn.Linear:
        return f"its head is {type(head).__name__}, not a plain nn.Linear (adapted or quantised heads differ)"
    code = getattr(unwrap(type(model).forward), "__code__", None)
    if code is None or "loss_function" not in code.co_names:
        return "its forward does not compute the loss through self.loss_function"
    loss = getattr(model.loss_function, "__name__", type(model.loss_function).__name__)
    return None if loss == "ForCausalLMLoss" else f"its loss is {loss}, not that of a causal language model"


def _in_chunks(hidden: torch.Tensor, head: nn.Linear, wanted: Targets, *, shaping: Shaping) -> Losses:
    weight, bias = head.weight, head.bias

    def loss_of(
        rows: torch.Tensor, tokens: torch.Tensor, weights: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        # What cross_entropy does, once for both.
        logs = functional.log_softmax(shaping(functional.linear(rows, weight, bias).float()), dim=-1)
        each = functional.nll_loss(logs.detach(), tokens, reduction="none")
        if weights is None:
            return functional.nll_loss(logs, tokens, reduction="sum"), each
        return (functional.nll_loss(logs, tokens, reduction="none") * weights).sum(), each

    size = max(1, CHUNK_BYTES // (4 * weight.shape[0]))
    total, losses = torch.zeros((), device=hidden.device), []
    for begin in range(0, max(1, len(hidden)), size):
        part = slice(begin, begin + size)
        weights = None if wanted.weights is None else wanted.weights[part]
        some, each = checkpoint(loss_of, hidden[part], wanted.tokens[part], weights, use_reentrant=False)
        total = total + some
        losses.append(each)
    return total, torch.cat(losses)


def _torch_kernel(hidden: torch.Tensor, head: nn.Linear, wanted: Targets) -> Losses:
    hidden, weight, bias = _alike(hidden, head)
    how = {"reduction": "sum", "options": nn.LinearCrossEntropyOptions()}
    total: torch.Tensor = functional.linear_cross_entropy(
        hidden, weight, wanted.tokens, linear_bias=bias, **how
    ).float()
    return total, None


def _liger_kernel(shaping: Shaping) -> Kernel:
    try:
        from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy
    except ImportError as error:
        raise ConfigError(
            f"loss_kernel: liger needs a GPU and pip install 'packtrain[liger]': {error}. Or take chunked"
        ) from error
    if shaping.scale != 1.0:
        raise ConfigError(f"loss_kernel: liger cannot scale logits as this model does ({shaping}); take chunked")

    def kernel(hidden: torch.Tensor, head: nn.Linear, wanted: Targets) -> Losses:
        hidden, weight, bias = _alike(hidden, head)
        how = {"reduction": "sum", "softcap": shaping.softcap, "accum_dtype": torch.float32}
        total: torch.Tensor = liger_fused_linear_cross_entropy(hidden, weight, wanted.tokens, bias=bias, **how)
        return total, None

    return kernel


def _alike(hidden: torch.Tensor, head: nn.Linear) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Hidden states, weight and bias in the dtype in which a linear layer would compute."""
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else head.weight.dtype
    return hidden.to(dtype), head.weight.to(dtype), None if head.bias is None else head.bias.to(dtype)
