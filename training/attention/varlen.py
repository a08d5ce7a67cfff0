"""`packed_varlen`, the attention that ends at document bounds.

transformers calls it in every layer. It finds the bounds of the documents in the arguments of the layer, a window in
the layer's configuration, and computes attention by `kernels`. Where its result would be wrong it raises.

Legend: B rows (1 in a packed batch), T tokens, D documents, H query heads, G key heads, E head dimension, V value
dimension. Bounds are int32 (D + 1,), from 0 to T; empty documents, as in batches of a fixed shape, have equal ones.
"""

from collections.abc import Mapping
from typing import Any

import torch

from ...schemas.errors import AttentionError
from .kernels import HALF, MAX_HEAD_DIM, KeyBounds, flash, gather_paths, per_document, why_not_flash

NAME = "packed_varlen"
"""Its name in transformers."""
ANOTHER_MODEL = "take another model, or pad its documents with PackedLoader(unpacked=True)"
"""What to do with a model that cannot keep documents apart."""
_UNKNOWN = ("position_bias", "head_mask", "indices", "cache", "block_table", "alibi")
"""Arguments that change scores in ways that are not supported here."""
_WITHOUT_WINDOWS = ("moshi",)
"""Types of models with a window in their configuration that their code ignores."""


def packed_varlen(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each document. transformers passes these arguments to every attention.

    Args:
        module: the layer, for what it does not pass.
        query, key, value: (B, H, T, E), (B, G, T, E), (B, G, T, V).
        attention_mask: must be None.
        dropout: must be 0 in training.
        scaling: of the scores; by default 1 / √E.
        sliding_window: the number of tokens that each token sees, including itself; by default as `window_of` finds it
            in the layer.
        softcap: c; scores s become c·tanh(s/c).
        s_aux: (H,), attention sinks.
        is_causal: must be true; by default the layer's own.
        kwargs: `cu_seq_lens_q`, `cu_seq_lens_k` (int32 (D + 1,)), `max_length_q` (int), `position_ids` (B, T); for rows
            with branches, what `branches.path_arguments` gives instead of the bounds.

    Returns:
        (B, T, H, V), and None in the place of attention weights.

    Raises:
        AttentionError: the layer needs something that this function does not compute, or there are no bounds.
    """
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    _require_supported(module, query, key, attention_mask, dropout, causal, kwargs)
    rows, _, length, head_dim = query.shape
    bounds, longest = find_bounds(kwargs, rows, length, _name_of(module))
    scale = head_dim**-0.5 if scaling is None else float(scaling)
    window = window_of(module, sliding_window)
    # torch's FlashAttention knows neither softcaps nor sinks, and no wider heads.
    is_plain = softcap is None and s_aux is None and max(head_dim, value.shape[-1]) <= MAX_HEAD_DIM
    takes_flash = is_plain and not why_not_flash(query.device)
    if takes_flash:
        # To bf16 or fp16, as transformers' own FlashAttention casts what layer norms left in float32. The output stays
        # so: the weights of the layer's next product are of the same dtype, or autocast casts them.
        query, key, value = _in_half(module, query, key, value)
    # Rows end to end, and heads after tokens, as kernels take them: (B, H, T, E) → (B·T, H, E).
    q, k, v = (tensor.transpose(1, 2).flatten(0, 1) for tensor in (query, key, value))
    key_bounds = None
    paths = kwargs.get("paths")
    if paths is not None:  # documents share tokens: each sees the keys of its whole path
        k = gather_paths(k, paths)
        v = gather_paths(v, paths)
        key_bounds = KeyBounds(kwargs["cu_paths"], kwargs["max_path"])
    if takes_flash:
        out = flash(q, k, v, bounds, longest, scale=scale, window=window, key_bounds=key_bounds)
    else:
        out = per_document(
            q, k, v, bounds, scale=scale, window=window, softcap=softcap, sinks=s_aux, key_bounds=key_bounds
        )
    return out.unflatten(0, (rows, length)), None


def no_mask(*args: Any, attention_mask: torch.Tensor | None = None, use_vmap: bool = False, **kwargs: Any) -> None:
    """Called by transformers to build the mask for `packed_varlen`, which needs none.

    Args:
        attention_mask: (B, T), false at padding. One of ones is accepted, because BART and BioGPT make it themselves.
        use_vmap: transformers sets it for a model that adds its own conditions to the mask.

    Raises:
        AttentionError: the batch masks tokens, or the model adds its own conditions to the mask, which would be lost.
    """
    if attention_mask is not None and not bool(attention_mask.all()):
        raise AttentionError(
            f"{NAME} got an attention_mask with zeros. A packed batch has no mask, and no padding between documents: "
            "take the batches of PackedLoader. To generate, model.set_attn_implementation('sdpa')"
        )
    if use_vmap:
        raise AttentionError(
            f"this model adds its own conditions to the attention mask, and {NAME} does not use masks; set attention: "
            "sdpa or eager"
        )


def _in_half(module: torch.nn.Module, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Cast queries, keys and values to one half precision. Some may have come as float32, because norms of queries and
    keys, or all norms with PEFT, compute in float32.

    Raises:
        AttentionError: neither autocast, nor a tensor, nor a weight of the layer is in bf16 or fp16.
    """
    device_type = tensors[0].device.type
    if torch.is_autocast_enabled(device_type):
        target = torch.get_autocast_dtype(device_type)
    else:
        # The first half precision among the dtypes of the tensors; if they have none, of the layer's weights.
        dtypes = [*(tensor.dtype for tensor in tensors), *(weight.dtype for weight in module.parameters())]
        target = next((dtype for dtype in dtypes if dtype in HALF), None)
    if target not in HALF:
        raise AttentionError(
            f"{_name_of(module)}: queries are {tensors[0].dtype}, and FlashAttention takes bf16 and fp16; set bf16: "
            "true, load the model in bf16, or set attention: sdpa"
        )
    return tuple(tensor.to(target) for tensor in tensors)


# What a layer needs, and what is refused


def _name_of(module: torch.nn.Module) -> str:
    """A layer's name, for messages."""
    index = getattr(module, "layer_idx", None)
    return type(module).__name__ if index is None else f"{type(module).__name__} of layer {index}"


def _require_supported(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    causal: bool,
    kwargs: Mapping[str, Any],
) -> None:
    """Raise AttentionError if attention within documents would differ from this layer's own.

    Args:
        query, key: as `packed_varlen` gets them.
        mask: its `attention_mask`.
        causal: whether the layer's own attention looks at earlier tokens only.
        kwargs: further arguments of the layer.
    """
    unknown = next((name for name in _UNKNOWN if kwargs.get(name) is not None), None)
    if query.shape[2] != key.shape[2]:
        problem = (
            f"{query.shape[2]:,} queries and {key.shape[2]:,} keys. Packed attention is for training: pass "
            "use_cache=False; to generate, model.set_attn_implementation('sdpa')"
        )
    elif dropout > 0 and module.training:
        problem = (
            f"attention dropout {dropout:g}, which packed attention does not compute; set it to 0 in the model's "
            "config.json (attention_dropout, attn_pdrop or the like)"
        )
    elif not causal:
        problem = f"it looks ahead (is_causal is false), but packed attention is causal; {ANOTHER_MODEL}"
    elif kwargs.get("sides") is not None:
        # A model passes on what it does not know: here its own loss would be taken, of both sides alike.
        problem = (
            "the batch has the sides of preference pairs, which a model does not know, and its own loss would train "
            "rejected completions like chosen ones; take sides and labels out of the batch, and compute "
            "packtrain.training.preference_loss"
        )
    elif unknown is not None:
        problem = f"its attention takes {unknown}, which packed attention does not support; {ANOTHER_MODEL}"
    elif mask is not None:
        problem = (
            f"it makes its own attention mask, or the batch has one; {NAME} does not use masks. Leave attention_mask "
            "out of the batch; if the model makes it, set attention: sdpa or eager"
        )
    else:
        return
    raise AttentionError(f"{_name_of(module)}: {problem}")


def window_of(module: torch.nn.Module, passed: int | None) -> int | None:
    """The number of tokens that each token sees, including itself; None if it sees all earlier tokens.

    transformers expresses windows in the mask, and there is none here. Most layers also pass their window. If a layer
    does not (Qwen2-MoE, PhiMoE), it is the layer's own attribute, else the window of the configuration; unless the
    configuration says that this layer has none.

    Args:
        passed: the window that the layer passes.
    """
    if passed is not None:
        return int(passed)
    config: Any = getattr(module, "config", None)
    window = getattr(module, "sliding_window", None)
    layer_types = getattr(config, "layer_types", None)
    index = getattr(module, "layer_idx", None)
    if layer_types is not None and index is not None and index < len(layer_types):
        # The configuration says which layers have a window, such as ["full_attention", "sliding_attention", …].
        if layer_types[index] != "sliding_attention":
            return None
        may_take_config = True
    else:
        if getattr(config, "model_type", None) in _WITHOUT_WINDOWS:
            return None
        # Qwen2's older configurations have a window that this switches off.
        may_take_config = getattr(config, "use_sliding_window", True)
    if window is None and may_take_config:
        window = getattr(config, "sliding_window", None)
    return int(window) if isinstance(window, int) and window > 0 else None


# Bounds


def find_bounds(kwargs: Mapping[str, Any], rows: int, length: int, layer: str) -> tuple[torch.Tensor, int]:
    """The bounds in the arguments of a layer: `cu_seq_lens_q`, which most models pass to every layer; else derived from
    `position_ids` (StableLM and Nemotron drop the bounds).

    Args:
        kwargs: arguments of the attention function.
        rows, length: shape of the queries. Bounds of several rows are counted through all rows.
        layer: its name, for errors.

    Returns:
        int32 (D + 1,), where documents begin, then T, on the device of the queries; and the tokens of the longest
        document. That may be too high, but never too low: kernels leave tokens beyond it out.

    Raises:
        AttentionError: there are neither bounds nor positions, or they do not match the number of tokens.
    """
    if kwargs.get("paths") is not None:  # rows with branches
        return _checked_bounds(
            kwargs["cu_pieces"],
            longest=kwargs["max_piece"],
            key_bounds=None,  # keys have the bounds of paths, which differ
            rows=rows,
            length=length,
            layer=layer,
        )
    bounds = kwargs.get("cu_seq_lens_q")
    if bounds is not None:
        return _checked_bounds(
            bounds,
            longest=kwargs.get("max_length_q"),
            key_bounds=kwargs.get("cu_seq_lens_k"),
            rows=rows,
            length=length,
            layer=layer,
        )
    positions = kwargs.get("position_ids")
    if positions is None:
        raise AttentionError(
            f"{layer}: attention got neither cu_seq_lens_q nor position_ids, so it cannot find where documents end. "
            f"Pass both to the model, as PackedLoader's batches do. If you did, this model drops them: {ANOTHER_MODEL}"
        )
    return _bounds_of_positions(positions, rows, length, layer)


def _checked_bounds(
    bounds: torch.Tensor, longest: Any, key_bounds: torch.Tensor | None, rows: int, length: int, layer: str
) -> tuple[torch.Tensor, int]:
    """Bounds that a layer got, and the tokens of the longest document.

    Args:
        longest: as the layer got it; None if it got none.
        key_bounds: `cu_seq_lens_k`, as the layer got it.

    Raises:
        AttentionError: they do not belong to one row of this length.
    """
    if longest is None:
        longest = int((bounds[1:] - bounds[:-1]).max())
    elif not isinstance(longest, int):
        # Only what is no int yet: by `int()` of an int, code would be compiled again for every other value.
        longest = int(longest)
    is_wrong = rows != 1
    if key_bounds is not None:  # values on a device are not compared, because that waits for it
        is_wrong |= key_bounds.shape != bounds.shape
    if not torch.compiler.is_compiling():  # compiled code would stop at such comparisons, or be compiled again
        is_wrong |= longest > length
        if bounds.device.type == "cpu":
            is_wrong |= int(bounds[-1]) != length
    if is_wrong:
        raise AttentionError(
            f"{layer}: cu_seq_lens_q, cu_seq_lens_k and max_length_q are not those of this row of {length:,} tokens "
            f"({rows:,} rows came). Pass the batches of PackedLoader, or of collate, as they come; a device's part "
            "of a batch (context parallelism) needs attention that exchanges keys with the other devices"
        )
    return bounds, longest


def _bounds_of_positions(positions: torch.Tensor, rows: int, length: int, layer: str) -> tuple[torch.Tensor, int]:
    """Bounds by the positions of tokens: a document begins wherever they do not increase by one.

    Two rows of 5 tokens, of which the second begins within a document:

        positions    0 1 2 0 1    7 8 0 1 2
        begins       x     x      x   x
        bounds       0 3 5 7 10

    Args:
        positions: (B, T) or (1, T); or (kinds, B, T), as image models have them.

    Raises:
        AttentionError: they are of another number of tokens; or a branch begins, whose path is not known.
    """
    if positions.ndim == 3:  # several kinds, in image models: the positions of texts come first
        positions = positions[0]
    if positions.shape[-1] != length:
        raise AttentionError(
            f"{layer}: position_ids are for {positions.shape[-1]:,} tokens, but attention is over {length:,}; if there "
            "is a cache, pass use_cache=False"
        )
    positions = positions.expand(rows, -1)
    # bool (B·T,): whether a document begins at a token, as the first token of each row always does.
    is_first_of_row = torch.ones_like(positions[:, :1], dtype=torch.bool)
    is_begin = torch.cat((is_first_of_row, positions[:, 1:] != positions[:, :-1] + 1), dim=1).reshape(-1)
    starts = is_begin.nonzero().reshape(-1)  # 0 3 5 7 in the example
    first_positions = positions.reshape(-1)[starts]  # 0 0 7 0
    # A row may begin within a document. Within a row, only a branch begins above 0, and its batch has `paths`: a layer
    # without them belongs to a model that drops arguments.
    is_branch = (first_positions > 0) & (starts % length > 0)
    if bool(is_branch.any()):
        position = int(first_positions[is_branch][0])
        raise AttentionError(
            f"{layer}: a piece begins at position {position:,}, but this layer got no `paths`: the model drops them, "
            "and would train without the shared tokens; pack with pack.share: none, or take "
            "PackedLoader(unpacked=True)"
        )
    bounds = torch.cat((starts, torch.tensor([is_begin.numel()], device=starts.device))).to(torch.int32)
    return bounds, int((bounds[1:] - bounds[:-1]).max())
