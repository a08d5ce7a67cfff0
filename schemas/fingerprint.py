"""Hashes of values, of bytes and of numbers, stable between machines and versions of Python; and versions, to hash."""

import json
from functools import cache
from hashlib import file_digest
from importlib import metadata
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from .errors import ConfigError

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2**64 divided by the golden ratio: the step of SplitMix64's counter."""
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def fingerprint(value: Any) -> str:
    """BLAKE3 of the one JSON text of a value (keys sorted, no spaces), 64 hexadecimal digits.

    Raises:
        ConfigError: JSON cannot hold the value.
    """
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{error}; write text, finite numbers, lists and mappings with text as keys") from error
    return hash_bytes(text.encode())


def hash_bytes(data: bytes | memoryview) -> str:
    """BLAKE3 of the bytes, 64 hexadecimal digits (what the `b3sum` program prints)."""
    from blake3 import blake3  # here, so that processes that never hash do not need it

    return str(blake3(data).hexdigest())


def hash_stream(file: IO[bytes]) -> str:
    """As `hash_bytes`, of what is left of an open file, read in pieces."""
    from blake3 import blake3

    return file_digest(file, blake3).hexdigest()  # type: ignore[arg-type]  # it only calls `update`


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """(N,) SplitMix64's finaliser (Steele, Lea, Flood, 2014): every bit of the input moves every bit of the output.

    All orders of rows come from it, because it never changes, unlike numpy's generators.
    """
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * _FIRST
        x = (x ^ (x >> np.uint64(27))) * _SECOND
        return x ^ (x >> np.uint64(31))


def mix64(values: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """(N,) SplitMix64 of each value under a seed: 64-bit numbers that look independent."""
    with np.errstate(over="ignore"):
        return mix((values + np.uint64(1)) * GOLDEN + np.uint64(seed % 2**64))


@cache
def version(package: str) -> str:
    """The version of an installed package, looked up once, because reading its metadata takes milliseconds.

    Raises:
        importlib.metadata.PackageNotFoundError: it is not installed.
    """
    return metadata.version(package)
