"""Adds checksums to notes, so that damaged ones are recognised.

A note with a checksum is still a JSON object. Its first key, `check`, holds the hash of the bytes that follow. Notes
whose name says what they are about include the name, so that a note under the name of another counts as damaged.
"""

from ...schemas.fingerprint import hash_bytes

_HEAD = b'{"check":"'
_DIGITS = 32
_BODY = len(_HEAD) + _DIGITS + 2


def seal(content: bytes, name: str = "") -> bytes:
    """Add the checksum to a JSON object.

    Args:
        content: an object with at least one key, without white space before it.
        name: the only name under which `unseal` accepts it.
    """
    return _HEAD + _check(content, name) + b'",' + content[1:]


def unseal(sealed: bytes | None, name: str = "") -> bytes | None:
    """Return the object without its checksum; None if it is missing or damaged, or was sealed with another name."""
    if sealed is None or not sealed.startswith(_HEAD):
        return None
    content = b"{" + sealed[_BODY:]
    return content if sealed == seal(content, name) else None


def _check(content: bytes, name: str) -> bytes:
    return hash_bytes(content + name.encode())[:_DIGITS].encode()
