"""Checks a model without running it, for problems that a probe of a few short documents could miss."""

import importlib.util
import re
from collections.abc import Mapping
from typing import Any

import torch

from ...schemas.errors import BatchError
from ..attention import BLOCK_NAME, NAME
from ..attention.apply import unwrap
from ..attention.batches import check_batch
from ..attention.calls import attention_layers
from .limits import document_limit, row_limit
from .report import Check

_RECURRENT = re.compile(
    r"Mamba|SSM(?![a-z])|[Rr]wkv|RWKV|Recurrent|RgLru|RGLRU|Delta(?:Net|Attention|Product)|LinearAttention|LightningAttention"
    r"|ShortConv|Retention|xLSTM|[ms]LSTM|StateSpace"
)
_NOT_LAYERS = re.compile(
    r"Norm|Cache|Model|CausalLM|Embedding|DecoderLayer|Block$|Layer$|FeedForward|M[Ll][Pp]$|Backend"
)
_NOT_TEXT = re.compile(r"audio|vision|visual|speech|image|video", re.IGNORECASE)
KERNELS = ("mamba_ssm", "causal_conv1d", "fla")


def attention_checks(model: Any) -> list[Check]:
    """Check each part's attention implementation: transformers may fall back to another with only a warning.

    Returns no checks if no layer's attention follows transformers' interface.
    """
    bare = unwrap(model)
    layers = attention_layers(bare)
    if not layers:
        return []
    names = {str(one.config._attn_implementation) for one in (bare, *layers)}
    said = ", ".join(sorted(names))
    ours = bool(names & {NAME, BLOCK_NAME})
    check = Check(
        "attention",
        len(names) == 1 or not ours,
        said,
        "one for all layers",
        "" if ours else "not packtrain's: whether documents are apart depends on the model's own code",
    )
    return [check]


def dropout_check(model: Any) -> Check:
    """Check dropout: packed attention has none, and raises an error in training if the model asks for it. A model's own
    attention may have dropout.
    """
    bare = unwrap(model)
    wanted = {
        f"{name}={value:g}"
        for layer in attention_layers(bare)
        for name, value in [*vars(layer).items(), *_inner(layer)]
        if isinstance(value, float) and value > 0 and ("attention_dropout" in name or name in _DROPOUTS)
    }
    said = ", ".join(sorted(wanted)) or "0"
    if bare.config._attn_implementation not in (NAME, BLOCK_NAME):
        return Check("dropout", True, said, "any", "the model's own attention computes dropout" if wanted else "")
    return Check("dropout", not wanted, said, "0", "packed attention has no dropout" if wanted else "")


_DROPOUTS = ("attn_dropout", "attn_pdrop", "dropout", "dropout_p")


def _inner(layer: torch.nn.Module) -> list[tuple[str, Any]]:
    return [
        (name, inner.p)
        for name, inner in layer.named_children()
        if isinstance(inner, torch.nn.Dropout) and "resid" not in name
    ]


def layers_check(model: Any, batch: Mapping[str, Any]) -> Check:
    """Check layers with a recurrent state; they carry it across documents unless their kernels get the bounds."""
    kinds = recurrent_layers(model)
    if not kinds:
        return Check("layers", True, "attention only", "no recurrence", "")
    found = [name for name in KERNELS if importlib.util.find_spec(name) is not None]
    has_bounds = "seq_idx" in batch
    kernels = ", ".join(found) or "none"
    good = bool(found) and has_bounds
    return Check(
        "layers",
        good,
        f"{', '.join(kinds)}; kernels: {kernels}; seq_idx {'in' if has_bounds else 'not in'} the batch",
        "kernels and seq_idx",
        "" if good else "these layers carry a state over document bounds",
    )


def recurrent_layers(model: Any) -> list[str]:
    """Return the names of classes with recurrence, or with convolution along tokens."""
    bare = unwrap(model)
    text = bare.get_decoder() if hasattr(bare, "get_decoder") and bare.get_decoder() is not None else bare
    attending = {id(layer) for layer in attention_layers(bare)}
    found: list[str] = []
    for path, module in text.named_modules():
        name = type(module).__name__
        along = isinstance(module, torch.nn.Conv1d) and module.kernel_size[0] > 1
        named = bool(_RECURRENT.search(name)) and not _NOT_LAYERS.search(name)
        if (along or named) and name not in found and id(module) not in attending and not _NOT_TEXT.search(path):
            found.append(name)
    return found


def batch_check(batch: Mapping[str, Any]) -> Check:
    """See `attention.batches.check_batch`."""
    try:
        check_batch(batch)
    except BatchError as error:
        return Check("batch", False, "malformed", "bounds, positions, no mask, no cache", str(error))
    return Check("batch", True, "well formed", "bounds, positions, no mask, no cache", "")


def length_checks(model: Any, tokens: int | None, longest: int | None) -> list[Check]:
    """Check lengths for models that isolate documents only up to some length.

    Args:
        tokens: largest number of tokens in a batch; None if unknown.
        longest: tokens of the longest document; None if unknown.
    """
    checks = []
    for name, found, limit in (("length", tokens, row_limit(model)), ("stretch", longest, document_limit(model))):
        if limit is not None:
            of = "a batch" if name == "length" else "a document"
            said = "not known" if found is None else f"{found:,} tokens {of}"
            good = found is None or found <= limit.tokens
            checks.append(Check(name, good, said, f"at most {limit.tokens:,} tokens {of}", limit.reason))
    return checks
