"""Quick hashes of texts: XXH3, which takes a tenth of the time of a cryptographic hash. Damage is not found by them.

A file of its own, because processes that only read datasets need no xxhash.
"""

from xxhash import xxh3_64_intdigest, xxh3_128_digest


def text_digest(data: bytes, seed: int = 0) -> bytes:
    """16 bytes by which equal examples are found: among a billion, two others share them with a chance of 10⁻²¹."""
    return xxh3_128_digest(data, seed=seed)


def text_number(data: bytes, seed: int = 0) -> int:
    """A number below 2**64 that looks independent of the text, by which samples are drawn."""
    return xxh3_64_intdigest(data, seed=seed)
