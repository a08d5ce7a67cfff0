"""What can be said of a model without running it: facts that a probe of a few short documents could miss."""

import importlib.util
import re
from collections.abc import Mapping
from typing import Any

import torch

from ...schemas.errors import BatchError
from ..attention import BLOCK_NAME, NAME
from ..attention.apply import configs_of, unwrap
from ..attention.batches import check_batch
from ..attention.calls import attention_layers
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


def attention_check(model: Any) -> Check:
    """The implementation that each part of the model has: transformers warns at most where it falls back."""
    bare = unwrap(model)
    names = {str(getattr(bare.config, "_attn_implementation", None))}
    names |= {str(getattr(layer.config, "_attn_implementation", None)) for layer in attention_layers(bare)}
    said = ", ".join(sorted(names))
    ours = bool(names & {NAME, BLOCK_NAME})
    return Check(
        "attention",
        len(names) == 1 or not ours,
        said,
        "one for all layers",
        "" if ours else "not packtrain's: whether documents are apart depends on the model's own code",
    )


def dropout_check(model: Any) -> Check:
    """Packed attention has no dropout, and raises in training where a model wants some."""
    bare = unwrap(model)
    wanted = {
        f"{name}={value:g}"
        for layer in attention_layers(bare)
        for name, value in [*vars(layer).items(), *_inner(layer)]
        if isinstance(value, float) and value > 0 and ("attention_dropout" in name or name in _DROPOUTS)
    }
    said = ", ".join(sorted(wanted)) or "0"
    return Check("dropout", not wanted, said, "0", "variable-length attention has no dropout" if wanted else "")


_DROPOUTS = ("attn_dropout", "attn_pdrop", "dropout", "dropout_p")


def _inner(layer: torch.nn.Module) -> list[tuple[str, Any]]:
    return [
        (name, inner.p)
        for name, inner in layer.named_children()
        if isinstance(inner, torch.nn.Dropout) and "resid" not in name
    ]


def layers_check(model: Any, batch: Mapping[str, Any]) -> Check:
    """Layers that carry a state from token to token do so across documents, unless kernels are told the bounds."""
    kinds = recurrent_layers(model)
    if not kinds:
        return Check("layers", True, "attention only", "no recurrence", "")
    found = [name for name in KERNELS if importlib.util.find_spec(name) is not None]
    told = "seq_idx" in batch
    kernels = ", ".join(found) or "none"
    good = bool(found) and told
    return Check(
        "layers",
        good,
        f"{', '.join(kinds)}; kernels: {kernels}; seq_idx {'in' if told else 'not in'} the batch",
        "kernels and seq_idx",
        "" if good else "these layers carry a state over document bounds",
    )


def recurrent_layers(model: Any) -> list[str]:
    """Names of classes with recurrence, or convolution along tokens."""
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


def length_check(model: Any, tokens: int | None) -> list[Check]:
    """Of models in which a document is as it would be alone only in rows that are not too long."""
    checks = []
    if (limit := most_tokens(model)) is not None:
        said = "not known" if tokens is None else f"{tokens:,} tokens a batch"
        checks.append(Check("length", tokens is None or tokens <= limit[0], said, f"at most {limit[0]:,}", limit[1]))
    if (limit := longest_document(model)) is not None:
        checks.append(Check("stretch", True, "for your information", f"documents up to {limit[0]:,} tokens", limit[1]))
    return checks


def most_tokens(model: Any) -> tuple[int, str] | None:
    """How long a packed row may be before documents in it are no longer as they would be alone, and why.

    Llama 4 scales queries by their place in the whole row, which begins to matter after `floor_scale` tokens.
    """
    for config in configs_of(unwrap(model).config):
        if getattr(config, "attn_temperature_tuning", False) and not all(
            getattr(config, "no_rope_layers", None) or [1]
        ):
            scale = int(getattr(config, "floor_scale", 8192))
            return scale - 1, f"queries are scaled by their place in the row from token {scale:,} on (floor_scale)"
    return None


def longest_document(model: Any) -> tuple[int, str] | None:
    """How long documents may be before one changes the positions of the others in its row, and why.

    Rotary embeddings that stretch with the longest sequence (`dynamic`, `longrope`) take all of a row together.
    """
    for config in configs_of(unwrap(model).config):
        rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
        kinds = [rope, *(one for one in rope.values() if isinstance(one, dict))]
        for one in kinds:
            if one.get("rope_type", one.get("type")) in ("dynamic", "longrope"):
                limit = one.get("original_max_position_embeddings") or getattr(
                    config, "original_max_position_embeddings", None
                )
                limit = int(limit or config.max_position_embeddings)
                return (
                    limit,
                    f"{one.get('rope_type', one.get('type'))} rotary embeddings stretch with the longest document",
                )
    return None
