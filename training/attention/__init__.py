"""Attention that ends at document bounds: `packed_varlen`, set on a model by `use_packed`.

`varlen` is the function that transformers calls in every layer, `kernels` computes it, and `apply` sets it.
"""

from .apply import Applied, use_packed
from .varlen import NAME, packed_varlen

__all__ = ["NAME", "Applied", "packed_varlen", "use_packed"]
