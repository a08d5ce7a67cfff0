"""Attention that ends at document bounds: `packed_varlen` and `packed_block_mask`, registered with transformers.

1. **Bounds** (`bounds`): finds which tokens form a document, from `cu_seq_lens_q`, else from `position_ids`; else it
raises an error.
2. **Kernel** (`kernels`): computes attention: torch's variable-length FlashAttention, the flash-attn package, or a loop
over documents where there is no CUDA. `choose` says which one, and why.
3. **Function** (`varlen`, `block_mask`): transformers calls it in every layer. It raises an error where its result
would be wrong.
4. **Application** (`apply`): `use_packed(model)` sets it and checks that it is set.
5. **Watching** (`calls`, `batches`): counts how often attention ran in a step, and checks that a batch is well formed.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .apply import Applied, register, use_packed
    from .batches import check_batch
    from .calls import count_calls, expected_calls
    from .kernels import Kernel, choose, survey

NAME = "packed_varlen"
"""Variable-length FlashAttention on CUDA; a loop over documents elsewhere."""
BLOCK_NAME = "packed_block_mask"
"""Masked attention over the whole row, exact and slow: for softcap, sinks, and models that build masks of their own."""

__all__ = [
    "BLOCK_NAME",
    "NAME",
    "Applied",
    "Kernel",
    "check_batch",
    "choose",
    "count_calls",
    "expected_calls",
    "register",
    "survey",
    "use_packed",
]

_HOMES = {
    "Applied": "apply",
    "Kernel": "kernels",
    "check_batch": "batches",
    "choose": "kernels",
    "count_calls": "calls",
    "expected_calls": "calls",
    "register": "apply",
    "survey": "kernels",
    "use_packed": "apply",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
