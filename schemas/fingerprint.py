"""Hashes of values and of bytes, stable between machines and versions of Python."""

import json
import math
from collections.abc import Mapping
from typing import Any

from .errors import PacktrainError


class FingerprintError(PacktrainError, TypeError):
    """The value has no stable bytes to hash."""


def canonical_json(value: Any) -> str:
    """The one JSON text of a value: keys sorted, no spaces, numbers as Python prints them.

    Raises:
        FingerprintError: the value's bytes could differ between runs; names it and the fix.
    """
    _check(value, "")
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def fingerprint(value: Any) -> str:
    """BLAKE3 of `canonical_json(value)`, 64 hexadecimal digits."""
    return hash_bytes(canonical_json(value).encode())


def hash_bytes(data: bytes | memoryview) -> str:
    """BLAKE3 of the bytes, 64 hexadecimal digits (what the `b3sum` program prints)."""
    from blake3 import blake3  # here, so that processes that never hash do not need it

    return str(blake3(data).hexdigest())


def _check(value: Any, where: str) -> None:
    if value is None or isinstance(value, (str, bool, int)):
        return
    if isinstance(value, float):
        if math.isfinite(value):
            return
        raise FingerprintError(f"{where or 'the value'} is {value}, which JSON cannot hold; use null instead")
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise FingerprintError(f"{where or 'the value'} has the key {key!r}; keys must be strings")
            _check(item, f"{where}.{key}" if where else key)
        return
    if isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _check(item, f"{where}[{index}]")
        return
    raise FingerprintError(
        f"{where or 'the value'} is a {type(value).__name__}, which has no stable bytes; "
        "turn it into strings, numbers, lists and dicts first"
    )
