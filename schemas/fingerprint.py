"""Hashes of values, of bytes and of numbers, stable between machines and versions of Python; and versions, to hash."""

import json
from functools import cache
from hashlib import blake2b, file_digest
from importlib import metadata
from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .errors import ConfigError

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2**64 divided by the golden ratio: the step of SplitMix64's counter."""
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
"""Both factors of SplitMix64's finaliser."""


class Hasher(Protocol):
    """A hash of bytes that come in pieces."""

    def update(self, data: Any, /) -> Any:
        """Add bytes."""

    def hexdigest(self) -> str:
        """The hash of all bytes so far, 64 hexadecimal digits."""


def new_hasher(data: bytes | memoryview = b"") -> Hasher:
    """The hash by which all files, blocks and fingerprints are known: BLAKE3, as the `b3sum` program prints it."""
    from blake3 import blake3  # here, so that processes that never hash do not need it

    return blake3(data)


def fingerprint(value: Any) -> str:
    """The hash of the one JSON text of a value (keys sorted, no spaces), 64 hexadecimal digits.

    Raises:
        ConfigError: JSON cannot hold the value.
    """
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{error}; write text, finite numbers, lists and mappings with text as keys") from error
    return hash_bytes(text.encode())


def hash_bytes(data: bytes | memoryview) -> str:
    """The hash of the bytes, 64 hexadecimal digits."""
    return new_hasher(data).hexdigest()


def hash_stream(file: IO[bytes]) -> str:
    """The hash of what is left of an open file, which is read in pieces, 64 hexadecimal digits."""
    return file_digest(file, new_hasher).hexdigest()  # type: ignore[arg-type]  # it only calls `update`


def hash_to_bytes(data: bytes, size: int) -> bytes:
    """The first `size` bytes of the hash, of which the caller makes a number."""
    return bytes.fromhex(hash_bytes(data))[:size]


def short_hash(data: bytes, size: int) -> str:
    """A hash of `size` bytes, as hexadecimal digits, for names of groups, readers and the like. It is BLAKE2b, because
    the standard library has it.
    """
    return blake2b(data, digest_size=size).hexdigest()


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """(N,) SplitMix64's finaliser (Steele, Lea, Flood, 2014): every bit of the input moves every bit of the output.

    All orders of rows come from it, because it never changes, unlike numpy's generators.
    """
    # Products beyond 64 bits wrap around, as the algorithm wants; numpy warns of that for single numbers.
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * _FIRST
        x = (x ^ (x >> np.uint64(27))) * _SECOND
        return x ^ (x >> np.uint64(31))


def mix64(values: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """(N,) 64-bit numbers that look independent: for the value n, the n-th number (from 0) that SplitMix64 gives after
    `seed`.
    """
    # Products wrap around here, too, as in `mix`. Of a seed, the lowest 64 bits count.
    with np.errstate(over="ignore"):
        return mix((values + np.uint64(1)) * GOLDEN + np.uint64(seed % 2**64))


@cache
def version(package: str) -> str:
    """The version of an installed package, looked up once, because reading its metadata takes milliseconds.

    Raises:
        importlib.metadata.PackageNotFoundError: it is not installed.
    """
    return metadata.version(package)
