"""Notes that are believed later carry a checksum: a bit that flipped in one must not be taken for what was written.

A sealed note is still one JSON object. Its first key, `check`, holds the hash of the others as they are written.
"""

from ..schemas.fingerprint import hash_bytes

_HEAD = b'{"check":"'
_DIGITS = 32
_BODY = len(_HEAD) + _DIGITS + 2


def seal(content: bytes) -> bytes:
    """A JSON object with its checksum.

    Args:
        content: an object with at least one key, without white space before it.
    """
    return _HEAD + _check(content) + b'",' + content[1:]


def unseal(sealed: bytes | None) -> bytes | None:
    """The object that was sealed; None where there is none, or where it is not what it was."""
    if sealed is None or not sealed.startswith(_HEAD):
        return None
    content = b"{" + sealed[_BODY:]
    return content if sealed == seal(content) else None


def _check(content: bytes) -> bytes:
    return hash_bytes(content)[:_DIGITS].encode()
