"""What the messages of an Arrow file or stream unpack to, read from their headers before anything is unpacked.

Arrow compresses each buffer of a record batch on its own, and writes how long it was before it. pyarrow has no limit
for that: a file of a kilobyte can ask for any amount of memory. The headers are flatbuffers, of which only the few
fields that are needed here are read. Field numbers are those of Message.fbs and File.fbs of Arrow's format.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_MAGIC = b"ARROW1"
_CONTINUES = 0xFFFFFFFF
"""What comes before the length of a header, since version 1.0 of the format."""
_DICTIONARY, _BATCH = 2, 3
"""Types of messages that hold values."""


@dataclass(frozen=True, slots=True)
class MessageSize:
    """One message with values: a record batch, or the values of a dictionary."""

    rows: int
    bytes: int
    """Of its buffers when they are unpacked; of those that are not compressed, as they lie in the file."""
    compressed: bool


def message_sizes(data: memoryview) -> Iterator[MessageSize]:
    """The messages with values of an Arrow file or stream, in its order.

    Raises:
        ValueError: a header is damaged or cut short.
    """
    try:
        for header, body in _messages(data):
            size = _size(data, header, body)
            if size is not None:
                yield size
    except struct.error:
        raise ValueError("a header of it is damaged or cut short") from None


def require_bounded(data: memoryview, most: int) -> None:
    """Refuse an Arrow file or stream of which a record batch would take too much memory.

    Args:
        most: bytes that a compressed record batch may unpack to; with 0, none may be compressed.

    Raises:
        ValueError: one unpacks to more, or says that it has more rows than its bytes can hold.
    """
    for size in message_sizes(data):
        if size.compressed and size.bytes > most:
            raise ValueError(
                f"a record batch of it unpacks to {size.bytes:,} bytes, and may to {most:,}"
                if most
                else "it is compressed, which packtrain never does"
            )
        # A null of any type takes a bit at least; only columns without any value take none.
        if size.rows > 8 * max(size.bytes, 1 << 20):
            raise ValueError(f"a record batch of it says that it has {size.rows:,} rows, in {size.bytes:,} bytes")


def _messages(data: memoryview) -> Iterator[tuple[int, int]]:
    """(Where its header begins, where its body begins) of each message."""
    if data[: len(_MAGIC)] == _MAGIC:
        yield from _listed(data)
        return
    place = 0
    while place + 4 <= len(data):
        header, length = _header(data, place)
        if not length:
            return
        yield header, header + length
        place = header + length + max(0, _number(data, _field(data, _root(data, header), 3), "q"))


def _listed(data: memoryview) -> Iterator[tuple[int, int]]:
    """As `_messages`, of a file, whose footer lists them."""
    end = len(data) - len(_MAGIC) - 4
    footer = _root(data, end - _number(data, end, "i"))
    for field in (2, 3):  # dictionaries, record batches
        start, count = _vector(data, _field(data, footer, field))
        for number in range(count):
            place, length = struct.unpack_from("<qi", data, start + 24 * number)
            if not 0 <= place < len(data):
                raise ValueError("its footer points outside of it")
            yield _header(data, place)[0], place + length


def _header(data: memoryview, place: int) -> tuple[int, int]:
    """Where the header of a message begins, and its length; 0 at the end of a stream."""
    (length,) = struct.unpack_from("<I", data, place)
    if length != _CONTINUES:  # as before version 1.0
        return place + 4, length
    return place + 8, int(struct.unpack_from("<I", data, place + 4)[0])


def _size(data: memoryview, header: int, body: int) -> MessageSize | None:
    """The size of a message; None if it holds no values."""
    message = _root(data, header)
    kind = _number(data, _field(data, message, 1), "B")
    if kind not in (_DICTIONARY, _BATCH):
        return None
    batch = _follow(data, _field(data, message, 2))
    if kind == _DICTIONARY:
        batch = _follow(data, _field(data, batch, 1))
    compressed = bool(_field(data, batch, 3))
    start, count = _vector(data, _field(data, batch, 2))
    total = 0
    for number in range(count):
        place, length = struct.unpack_from("<qq", data, start + 16 * number)
        if length > 0 and compressed:
            unpacked = _number(data, body + place, "q")
            length = length if unpacked < 0 else unpacked
        total += max(0, length)
    return MessageSize(_number(data, _field(data, batch, 0), "q"), total, compressed)


# Flatbuffers


def _number(data: memoryview, place: int, form: str) -> int:
    """A number; 0 if its field is left out, which stands for that."""
    if place < 0:
        raise ValueError("a header of it points outside of it")
    return int(struct.unpack_from(f"<{form}", data, place)[0]) if place else 0


def _follow(data: memoryview, place: int) -> int:
    """Where a table or vector is that a field refers to."""
    return place + _number(data, place, "I") if place else 0


def _root(data: memoryview, place: int) -> int:
    if place < 0:
        raise ValueError("a header of it points outside of it")
    return int(place + struct.unpack_from("<I", data, place)[0])


def _field(data: memoryview, table: int, number: int) -> int:
    """Where a field of a table is; 0 if it is left out."""
    if not table:
        return 0
    listing = table - int(struct.unpack_from("<i", data, table)[0])
    if listing < 0:
        raise ValueError("a header of it points outside of it")
    size = int(struct.unpack_from("<H", data, listing)[0])
    entry = 4 + 2 * number
    offset = int(struct.unpack_from("<H", data, listing + entry)[0]) if entry < size else 0
    return table + offset if offset else 0


def _vector(data: memoryview, place: int) -> tuple[int, int]:
    """Where the first entry of a vector is, and how many there are."""
    start = _follow(data, place)
    return (start + 4, _number(data, start, "I")) if start else (0, 0)
