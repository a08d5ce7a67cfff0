"""Heads of a model that return losses in the place of logits, so that the logits of all trained tokens never exist at
once: as one sum (`FusedHead`), or token by token (`ChunkedHead`).

The head's `forward` is replaced, because only while the head runs do all shards of its weights exist on a rank.

Legend: n trained tokens of a batch, V the vocabulary, H the hidden size.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ...schemas.errors import ConfigError
from ..attention.kernels import HALF
from ..models.model_parts import unwrap
from ..targets import Targets, token_losses

_LOG = logging.getLogger(__name__)
_MAX_CHUNKS = 8
"""Most chunks of the chunked loss in bf16 and fp16."""
_MIN_CHUNK_ROWS = 512
"""Fewest rows of such a chunk, where a row is a trained token."""
LOGITS_BYTES = 2 << 30
"""Losses of single tokens are computed in chunks where all their logits together would take more than this."""
CHUNK_BYTES = 256 << 20
"""What the logits of one such chunk take."""
_SHAPED = ("logits_scaling", "logit_scale", "lm_head_multiplier", "final_logit_softcapping")
"""Keys of models that change their logits between head and loss."""
Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor], torch.Tensor]
"""`kernel(hidden (n, H), weight (V, H), bias (V,), tokens (n,))` → the sum of their cross-entropies."""


def fuse_loss(model: nn.Module, kind: str, *, cuda: bool) -> "FusedHead | None":
    """Prepare a causal language model to compute its loss in its head; None if it is to compute logits.

    Call it before the model is compiled or wrapped by DDP or FSDP; a PEFT model may be given as it is.

    Args:
        cuda: whether the model trains on a GPU.
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
    changed = _changes_of_logits(text_config)
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


def _changes_of_logits(text_config: Any) -> list[str]:
    """The keys by which a model changes its logits behind its head. None, and a factor of 1, change nothing."""
    return [name for name in _SHAPED if getattr(text_config, name, None) not in (None, 1, 1.0)]


class _ReplacedHead:
    """A model's head, which within the context `of` gives losses in the place of logits.

    Args:
        head: its `forward` is replaced, for as long as the model lives. Outside of the context it does what it did.
    """

    def __init__(self, head: Any) -> None:
        self._head = head
        self._project = head.forward
        """The head's own forward: hidden states to logits."""
        self._targets: Targets | None = None
        """The tokens whose losses are wanted, which `of` sets; None outside of it."""
        head.forward = self._forward

    @contextmanager
    def of(self, targets: Targets) -> Iterator[None]:
        """A context in which what the model returns as logits are the losses of these tokens. Each class has its own
        shape of them.
        """
        self._targets = targets
        try:
            yield
        finally:
            self._targets = None

    def _forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """What the model calls as its head: losses within `of`, else logits."""
        return self._project(hidden) if self._targets is None else self._losses(hidden, self._targets)

    def _losses(self, hidden: torch.Tensor, targets: Targets) -> torch.Tensor:
        """The losses. `hidden` holds the states of all positions, or of the trained ones alone if the model takes
        `logits_to_keep`.
        """
        raise NotImplementedError


class FusedHead(_ReplacedHead):
    """A model's head, which within `of` returns the mean of the losses (1, 1, 1) in the place of logits.

    Args:
        name: of the kernel, `chunked` for torch's or `liger`.
    """

    def __init__(self, head: Any, name: str) -> None:
        self.name = name
        self._kernel = _liger() if name == "liger" else _torch
        super().__init__(head)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _losses(self, hidden: torch.Tensor, targets: Targets) -> torch.Tensor:
        device = hidden.device.type
        rows = hidden.flatten(0, -2)
        # In the dtype in which a linear layer would compute.
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else self._head.weight.dtype
        if len(rows) != len(targets.tokens):  # the model gives all positions to its head
            rows = rows[targets.index]
        bias = None if self._head.bias is None else self._head.bias.to(dtype)
        if not len(rows):
            # Liger's kernel divides by the number of rows, so it cannot be asked. The sum over none is 0 and so are its
            # gradients: they must exist, because all ranks wait for them.
            parts = [rows, self._head.weight[:0]]  # the bias follows, if there is one: each without a single row
            if bias is not None:
                parts.append(bias[:0])
            return torch.stack([part.float().sum() for part in parts]).sum().view(1, 1, 1)
        total = self._kernel(rows.to(dtype), self._head.weight.to(dtype), bias, targets.tokens).float()
        return (total / len(rows)).view(1, 1, 1)  # wrappers may cast it to float16, which cannot hold the sum


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
    chunk_rows = max(_MIN_CHUNK_ROWS, -(-rows // _MAX_CHUNKS))  # rounded up, or there could be a chunk more
    # Without a method torch takes the size that is given; both together would be an error.
    return nn.LinearCrossEntropyOptions(chunking_method=None, batch_chunk_size=chunk_rows)


def _torch(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, tokens: torch.Tensor) -> Any:
    """The `Kernel` of torch, for `loss_kernel: chunked`."""
    options = chunked_options(len(hidden), hidden.dtype)
    return functional.linear_cross_entropy(hidden, weight, tokens, linear_bias=bias, reduction="sum", options=options)


def _liger() -> Kernel:
    """The `Kernel` of Liger. Raises ConfigError if Liger cannot be imported."""
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


# Single tokens


def chunk_losses(model: nn.Module, tokens: int) -> "ChunkedHead | None":
    """Prepare a causal language model to give the losses of single tokens in chunks where their logits would take more
    than `LOGITS_BYTES`; None if batches are too small for that, or the model changes its logits behind its head.

    Call it before the model is compiled or wrapped by DDP or FSDP; a PEFT model may be given as it is.

    Args:
        tokens: the most trained tokens that a batch may have.
    """
    from transformers.integrations import is_deepspeed_zero3_enabled

    base: Any = unwrap(model)
    text_config = base.config.get_text_config()
    if tokens * text_config.vocab_size * 4 <= LOGITS_BYTES:  # 4 bytes for each logit, as losses are float32
        return None
    changed = _changes_of_logits(text_config)
    if changed or is_deepspeed_zero3_enabled():
        _LOG.info("logits of all trained tokens exist at once, because %s", ", ".join(changed) or "of ZeRO-3")
        return None
    return ChunkedHead(base.get_output_embeddings(), text_config.vocab_size)


class ChunkedHead(_ReplacedHead):
    """A model's head, which within `of` returns the losses of single tokens (1, n, 1) in the place of logits.

    Chunks of hidden states go through the head one after another, and again in the backward pass. Measured on a CPU for
    1,024 tokens and a vocabulary of 151,936: 307 MiB in place of 1,751, at about twice the time of the head.
    """

    def __init__(self, head: Any, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        super().__init__(head)

    def is_worth(self, tokens: int) -> bool:
        """Whether the logits of so many tokens would take more than `LOGITS_BYTES`, so that chunks save memory."""
        return tokens * self._vocabulary * 4 > LOGITS_BYTES  # 4 bytes for each float32 logit

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _losses(self, hidden: torch.Tensor, targets: Targets) -> torch.Tensor:
        rows = hidden.flatten(0, -2)
        if len(rows) != len(targets.tokens):  # the model gives all positions to its head
            rows = rows[targets.index]
        size = max(1, CHUNK_BYTES // (4 * self._vocabulary))  # rows whose float32 logits take CHUNK_BYTES
        chunks = zip(rows.split(size), targets.tokens.split(size), strict=True)
        losses = [checkpoint(self._chunk, part, tokens, use_reentrant=False) for part, tokens in chunks]
        return torch.cat(losses).view(1, -1, 1)

    def _chunk(self, hidden: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """(m,) the losses of m tokens, from their hidden states (m, H)."""
        return token_losses(self._project(hidden), tokens)
