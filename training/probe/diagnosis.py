"""Of a leak, which single setting is at fault: each is turned by itself, and the probe made again.

Every rank must make the same forward passes, so all ranks diagnose or none (`probing.probe` sees to it).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ...schemas.errors import PacktrainError
from ..attention import BLOCK_NAME, NAME
from ..attention.apply import register, unwrap
from .documents import Batch, Documents
from .equivalence import compare
from .gradient import NoGradientError, influence
from .perturbation import perturb
from .static import recurrent_layers

Call = Callable[[Batch], Any]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is at fault, and what to do."""

    fault: str
    mend: str


def diagnose(model: Any, call: Call, documents: Documents, device: torch.device, dtype: torch.dtype) -> Diagnosis:
    """Turn one setting after another until documents are apart; or say what in the model itself carries over."""
    batch = documents.packed()
    if _isolated(model, call, documents, device, dtype):
        return Diagnosis(
            f"positions: {type(unwrap(model)).__name__} counts along the whole row, and does not take position_ids",
            "set batching: padded, or take another model",
        )

    def cured(change: Callable[[Batch], Batch] = lambda batch: batch) -> bool:
        return _apart(model, lambda batch: call(change(batch)), documents, device, dtype)

    if batch.get("attention_mask") is not None and cured(_without_mask):
        return Diagnosis(
            "attention_mask in the batch: a mask of ones lets every document see all before it",
            "leave attention_mask out of the batch",
        )
    if batch.get("use_cache") is not False and cured(_without_cache):
        return Diagnosis(
            f"use_cache={batch.get('use_cache')!r}: with a cache, bounds are not made from positions",
            "put use_cache=False into the batch",
        )
    if cured(lambda batch: _without_cache(_without_mask(batch))):
        return Diagnosis(
            "attention_mask and use_cache together", "leave attention_mask out of the batch, and pass use_cache=False"
        )
    if cured(lambda batch: {**batch, "position_ids": _positions(batch, documents)}):
        return Diagnosis(
            "position_ids do not begin again in every document", "take the batches of PackedLoader as they come"
        )
    if kinds := recurrent_layers(model):
        return Diagnosis(
            f"{', '.join(kinds)}: layers that carry a state over document bounds",
            "install their kernels (mamba-ssm and causal-conv1d, or flash-linear-attention) and pass seq_idx, if the "
            "architecture supports that; else set batching: padded",
        )
    bare = unwrap(model)
    before = str(bare.config._attn_implementation)
    for name in (NAME, BLOCK_NAME, "sdpa", "eager"):
        if name == before:
            continue
        with _attending(bare, name) as done:
            if done and cured():
                return Diagnosis(
                    f"attention: {before}. {type(bare).__name__} does not keep documents apart with it",
                    f"set attention: {'auto' if name in (NAME, BLOCK_NAME) else name}"
                    + (f" (which is {name})" if name in (NAME, BLOCK_NAME) else ""),
                )
    return Diagnosis(
        f"{type(bare).__name__} itself: no setting of attention, cache, mask or positions makes documents independent",
        "set batching: padded, or take another model",
    )


def _without_mask(batch: Batch) -> Batch:
    return {name: value for name, value in batch.items() if name != "attention_mask"}


def _without_cache(batch: Batch) -> Batch:
    return {**batch, "use_cache": False}


def _positions(batch: Batch, documents: Documents) -> torch.Tensor:
    """Beginning again in every document, and in what padding follows the last."""
    ids = batch.get("input_ids", batch.get("inputs_embeds"))
    assert ids is not None
    rest = ids.shape[1] - sum(documents.lengths)
    if rest < 0:  # one of them alone
        return torch.arange(ids.shape[1], device=ids.device)[None]
    return torch.cat([torch.arange(length, device=ids.device) for length in (*documents.lengths, rest)])[None]


def _apart(model: Any, call: Call, documents: Documents, device: torch.device, dtype: torch.dtype) -> bool:
    """Isolated, and the same as alone."""
    if not _isolated(model, call, documents, device, dtype):
        return False
    try:
        return compare(call, documents, device, dtype).same
    except _CANNOT:
        return False


def _isolated(model: Any, call: Call, documents: Documents, device: torch.device, dtype: torch.dtype) -> bool:
    """What cannot run is no cure."""
    try:
        try:
            found = influence(model, call, documents, device)
            return found.leak == 0 and found.own > 0
        except NoGradientError:
            moved = perturb(call, documents, device, dtype)
            return moved.apart and moved.own > moved.threshold
    except _CANNOT:
        return False


_CANNOT = (PacktrainError, RuntimeError, ValueError, TypeError, KeyError, AttributeError, IndexError, ImportError)


@contextmanager
def _attending(model: Any, name: str) -> Iterator[bool]:
    """With another attention; yields whether that could be set."""
    from ..attention.apply import _messages, configs_of

    register()
    before = [(config, config._attn_implementation) for config in configs_of(model.config)]
    try:
        with _messages():
            try:
                model.set_attn_implementation(name)
            except (ValueError, ImportError, AttributeError):
                yield False
                return
        yield model.config._attn_implementation == name
    finally:
        for config, was in before:
            config._attn_implementation_internal = was
