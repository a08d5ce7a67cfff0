"""Finds what an attention layer needs (window, chunks) from how transformers calls it, and refuses what is not
supported.

transformers expresses sliding windows and chunks in the mask, and `packed_varlen` builds no mask. Most layers also pass
their window as an argument; for those that do not (Qwen2-MoE, PhiMoE), the configuration's `layer_types` are used.
"""

import inspect
import sys
from functools import cache
from typing import Any

import torch

from ...schemas.errors import AttentionError

_UNKNOWN = ("position_bias", "head_mask", "indices", "cache", "block_table", "alibi")
"""Arguments that change scores in ways that are not supported here."""


def who(module: torch.nn.Module) -> str:
    """Return the layer's name, for errors."""
    index = getattr(module, "layer_idx", None)
    return type(module).__name__ if index is None else f"{type(module).__name__} of layer {index}"


def refuse(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    dropout: float,
    is_causal: bool | None,
    kwargs: dict[str, Any],
    known: tuple[str, ...] = (),
) -> None:
    """Raise an error if attention within documents would differ from this layer's own attention.

    Args:
        known: arguments that change scores, but that the caller handles.

    Raises:
        AttentionError: a cache or cross-attention, dropout, attention that looks ahead, or an argument that changes
            scores.
    """
    if query.shape[2] != key.shape[2]:
        raise AttentionError(
            f"{who(module)}: {query.shape[2]:,} queries and {key.shape[2]:,} keys. Packed attention is for training: "
            "pass use_cache=False; to generate, model.set_attn_implementation('sdpa')"
        )
    if dropout > 0 and module.training:
        raise AttentionError(
            f"{who(module)}: attention dropout {dropout:g}, which packed attention does not compute; set it to 0 in "
            "the model's config.json (attention_dropout, attn_pdrop or the like)"
        )
    if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        raise AttentionError(
            f"{who(module)} looks ahead (is_causal is false), but packed attention is causal; "
            "take another model, or pad its documents with PackedLoader(unpacked=True)"
        )
    for name in _UNKNOWN:
        if kwargs.get(name) is not None and name not in known:
            raise AttentionError(
                f"{who(module)}: its attention takes {name}, which packed attention does not support; "
                "take another model, or pad its documents with PackedLoader(unpacked=True)"
            )


def window_of(module: torch.nn.Module, given: int | None) -> int | None:
    """Return the number of tokens that each token sees, including itself; None if it sees all earlier tokens.

    Args:
        given: the window that the layer passes.
    """
    if given is not None:
        return int(given)
    config: Any = getattr(module, "config", None)
    kinds, index = getattr(config, "layer_types", None), getattr(module, "layer_idx", None)
    own = getattr(module, "sliding_window", None)
    if kinds is not None and index is not None and index < len(kinds):
        if kinds[index] != "sliding_attention":
            return None
        own = getattr(config, "sliding_window", None) if own is None else own
    else:
        if own is None and getattr(config, "use_sliding_window", True):
            own = getattr(config, "sliding_window", None)
        if isinstance(own, int) and not _masks_windows(type(module).__module__):
            return None
    return int(own) if isinstance(own, int) and own > 0 else None


@cache
def _masks_windows(code: str) -> bool:
    """Whether a model's code uses masks with windows. Moshi, for example, has a window in its configuration but ignores
    it.
    """
    source = sys.modules.get(code)
    try:
        return source is None or "create_sliding_window_causal_mask" in inspect.getsource(source)
    except (OSError, TypeError):  # the code has no file: trust the configuration
        return True


def chunk_of(module: torch.nn.Module) -> int | None:
    """Return the length of the chunks within which this layer attends, as in Llama 4; None if it has no chunks."""
    config: Any = getattr(module, "config", None)
    kinds, index = getattr(config, "layer_types", None), getattr(module, "layer_idx", None)
    if kinds is None or index is None or index >= len(kinds) or kinds[index] != "chunked_attention":
        return None
    chunk = getattr(config, "attention_chunk_size", None)
    return None if chunk is None else int(chunk)


def refuse_mask(mask: torch.Tensor | None, name: str) -> None:
    """Raise an error if a batch masks tokens. A mask of ones is accepted, because some models (BART, BioGPT) make one
    themselves.

    Args:
        mask: (B, T), false at padding.

    Raises:
        AttentionError: the mask has zeros.
    """
    if mask is not None and not bool(mask.all()):
        raise AttentionError(
            f"{name} got an attention_mask with zeros. A packed batch has no mask, and no padding between documents: "
            "take the batches of PackedLoader. To generate, model.set_attn_implementation('sdpa')"
        )
