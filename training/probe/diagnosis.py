"""Finds the single setting that causes a leak: changes each one alone, and probes again.

Every rank must make the same forward passes, so either all ranks diagnose or none (`probing.probe` makes sure of that).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ...schemas.errors import PacktrainError
from ..attention import BLOCK_NAME, NAME
from ..attention.apply import register, unwrap
from .documents import Batch, Call, RandomDocuments
from .equivalence import compare
from .gradient import NoGradientError, influence
from .perturbation import perturb
from .static import recurrent_layers


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The cause of a leak, and how to fix it."""

    fault: str
    fix: str


def diagnose(model: Any, call: Call, documents: RandomDocuments, device: torch.device, dtype: torch.dtype) -> Diagnosis:
    """Change one setting after another until documents are isolated. If none helps, name the part of the model that
    carries state over.
    """
    batch = documents.packed()
    if _isolated(model, call, documents, device, dtype):
        return Diagnosis(
            f"positions: {type(unwrap(model)).__name__} counts along the whole row, and does not accept position_ids",
            "take another model, or pad its documents with PackedLoader(unpacked=True)",
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
            f"use_cache={batch.get('use_cache')!r}: with a cache, bounds are not derived from positions",
            "put use_cache=False into the batch",
        )
    if cured(lambda batch: _without_cache(_without_mask(batch))):
        return Diagnosis(
            "attention_mask and use_cache together", "leave attention_mask out of the batch, and pass use_cache=False"
        )
    if cured(lambda batch: {**batch, "position_ids": _positions(batch, documents)}):
        return Diagnosis(
            "position_ids do not restart in every document", "take the batches of PackedLoader as they come"
        )
    if kinds := recurrent_layers(model):
        return Diagnosis(
            f"{', '.join(kinds)}: layers that carry a state over document bounds",
            "install their kernels (mamba-ssm and causal-conv1d, or flash-linear-attention) and pass seq_idx, if the "
            "architecture supports that; else pad documents with PackedLoader(unpacked=True)",
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
        "take another model, or pad its documents with PackedLoader(unpacked=True)",
    )


def _without_mask(batch: Batch) -> Batch:
    return {name: value for name, value in batch.items() if name != "attention_mask"}


def _without_cache(batch: Batch) -> Batch:
    return {**batch, "use_cache": False}


def _positions(batch: Batch, documents: RandomDocuments) -> torch.Tensor:
    """Positions that restart in every document, and in the padding after the last one."""
    ids = batch.get("input_ids", batch.get("inputs_embeds"))
    assert ids is not None
    rest = ids.shape[1] - sum(documents.lengths)
    if rest < 0:  # a single document
        return torch.arange(ids.shape[1], device=ids.device)[None]
    return torch.cat([torch.arange(length, device=ids.device) for length in (*documents.lengths, rest)])[None]


def _apart(model: Any, call: Call, documents: RandomDocuments, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether documents are isolated and give the same outputs as alone."""
    if not _isolated(model, call, documents, device, dtype):
        return False
    try:
        return compare(call, documents, device, dtype).same
    except _CANNOT:
        return False


def _isolated(model: Any, call: Call, documents: RandomDocuments, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether documents are isolated; False if the model cannot run in this setting."""
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
    """Set another attention temporarily. Yields whether that succeeded."""
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
