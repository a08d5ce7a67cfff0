"""Quick hashes of texts: XXH3, which takes a tenth of the time of a cryptographic hash. Damage to files is found by the
hashes of `fingerprint.py` instead.

A file of its own, because processes that only read datasets need no xxhash.
"""

from xxhash import xxh3_64_intdigest, xxh3_128_digest


def text_digest(data: bytes, seed: int = 0) -> bytes:
    """16 bytes by which equal examples are found. Among a billion different texts, two have the same 16 bytes with a
    chance of about 10⁻²¹.
    """
    return xxh3_128_digest(data, seed=seed)


def text_number(data: bytes, seed: int = 0) -> int:
    """A number below 2**64 that looks random, but is always the same for a text and seed; samples are drawn by it."""
    return xxh3_64_intdigest(data, seed=seed)
