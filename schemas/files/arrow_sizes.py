"""What the messages of an Arrow file or stream unpack to, read from their headers before anything is unpacked.

Arrow compresses each buffer of a record batch on its own, and writes its unpacked length before it. pyarrow has no
limit for that: a file of a kilobyte can ask for any amount of memory. The headers are flatbuffers, of which only the
few fields that are needed here are read. Positions are bytes from the start of the file or stream.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_MAGIC = b"ARROW1"
_CONTINUATION = 0xFFFFFFFF
"""What comes before the length of a header, since version 1.0 of the format."""
_DICTIONARY_BATCH = 2
_RECORD_BATCH = 3

# Numbers of fields, as Message.fbs and File.fbs of Arrow's format list them.
_MESSAGE_HEADER_TYPE = 1
_MESSAGE_HEADER = 2
_MESSAGE_BODY_LENGTH = 3
_FOOTER_DICTIONARIES = 2
_FOOTER_RECORD_BATCHES = 3
_DICTIONARY_DATA = 1
_BATCH_ROWS = 0
_BATCH_BUFFERS = 2
_BATCH_COMPRESSION = 3
_BLOCK_BYTES = 24  # struct Block: offset, length of the header, length of the body
_BUFFER_BYTES = 16  # struct Buffer: offset in the body, length


@dataclass(frozen=True, slots=True)
class MessageSize:
    """One message with values: a record batch, or the values of a dictionary."""

    rows: int
    bytes: int
    """Of its buffers when they are unpacked; a buffer that is not compressed counts as it lies in the file."""
    compressed: bool


def message_sizes(data: memoryview) -> Iterator[MessageSize]:
    """The messages with values of an Arrow file or stream, in its order.

    Raises:
        ValueError: a header is damaged or cut short.
    """
    try:
        for header, body in _messages(data):
            batch = _record_batch(data, header)
            if batch:
                yield _batch_size(data, batch, body)
    except struct.error:
        raise ValueError("a header of it is damaged or cut short") from None


def require_bounded(data: memoryview, max_unpacked_bytes: int) -> None:
    """Refuse an Arrow file or stream of which a record batch would take too much memory.

    Args:
        max_unpacked_bytes: what a compressed record batch may unpack to; with 0, none may be compressed.

    Raises:
        ValueError: one unpacks to more, or says that it has more rows than its bytes can hold.
    """
    for size in message_sizes(data):
        if size.compressed and size.bytes > max_unpacked_bytes:
            if max_unpacked_bytes == 0:
                raise ValueError("it is compressed, which packtrain never does")
            raise ValueError(f"a record batch of it unpacks to {size.bytes:,} bytes, and may to {max_unpacked_bytes:,}")
        # A value or a null takes at least a bit, so the bytes bound the rows. Only columns of type null take nothing,
        # and a batch without columns: those may have as many rows as a MiB has bits.
        if size.rows > 8 * max(size.bytes, 1 << 20):
            raise ValueError(f"a record batch of it says that it has {size.rows:,} rows, in {size.bytes:,} bytes")


def _messages(data: memoryview) -> Iterator[tuple[int, int]]:
    """(Where its header begins, where its body begins) of each message."""
    if data[: len(_MAGIC)] == _MAGIC:
        yield from _messages_of_file(data)
    else:
        yield from _messages_of_stream(data)


def _messages_of_stream(data: memoryview) -> Iterator[tuple[int, int]]:
    """(Where its header begins, where its body begins) of each message of a stream, in which they follow each other."""
    position = 0
    while position + 4 <= len(data):
        header, header_length = _header(data, position)
        if header_length == 0:  # the mark of the stream's end
            return
        body = header + header_length
        yield header, body
        body_length = _number(data, _field(data, _root_table(data, header), _MESSAGE_BODY_LENGTH), "q")
        position = body + max(0, body_length)  # a negative length would lead back, and never end


def _messages_of_file(data: memoryview) -> Iterator[tuple[int, int]]:
    """(Where its header begins, where its body begins) of each message of a file, whose footer lists them."""
    # A file ends with its footer, the footer's length in 4 bytes, and the magic word.
    footer_end = len(data) - len(_MAGIC) - 4
    footer = _root_table(data, footer_end - _number(data, footer_end, "i"))
    for field in (_FOOTER_DICTIONARIES, _FOOTER_RECORD_BATCHES):
        blocks, count = _vector(data, _field(data, footer, field))
        for index in range(count):
            # Block at 100, header length 48: the mark and length before the header itself count, so the body is at 148.
            position, header_length = struct.unpack_from("<qi", data, blocks + _BLOCK_BYTES * index)
            if not 0 <= position < len(data):
                raise ValueError("its footer points outside of it")
            header, _ = _header(data, position)
            yield header, position + header_length


def _header(data: memoryview, position: int) -> tuple[int, int]:
    """Where the header of a message begins, and its length; length 0 at the end of a stream.

    A message at 100 with a header of 40 bytes, now and before version 1.0 of the format:

        100 mark      104 length: 40    108 header    148 body
        100 length: 40                  104 header    144 body
    """
    (length,) = struct.unpack_from("<I", data, position)
    if length != _CONTINUATION:  # as before version 1.0
        return position + 4, length
    return position + 8, int(struct.unpack_from("<I", data, position + 4)[0])


def _record_batch(data: memoryview, header: int) -> int:
    """Where the table RecordBatch of a message begins; 0 if the message has no values, because it is a schema.

    Of a record batch, it is the table that the header refers to; of a dictionary, it is one table further in:
    Message.header → DictionaryBatch, DictionaryBatch.data → RecordBatch.
    """
    message = _root_table(data, header)
    header_type = _number(data, _field(data, message, _MESSAGE_HEADER_TYPE), "B")
    if header_type not in (_DICTIONARY_BATCH, _RECORD_BATCH):
        return 0
    table = _follow(data, _field(data, message, _MESSAGE_HEADER))
    if header_type == _RECORD_BATCH:
        return table
    return _follow(data, _field(data, table, _DICTIONARY_DATA))


def _batch_size(data: memoryview, batch: int, body: int) -> MessageSize:
    """The size of a record batch.

    Args:
        batch: where its table begins.
        body: where the body of its message begins, which has the buffers.
    """
    rows = _number(data, _field(data, batch, _BATCH_ROWS), "q")
    # The field names the codec, and is left out where nothing is compressed.
    compressed = _field(data, batch, _BATCH_COMPRESSION) != 0
    buffers, count = _vector(data, _field(data, batch, _BATCH_BUFFERS))
    unpacked_bytes = 0
    for index in range(count):
        offset, length = struct.unpack_from("<qq", data, buffers + _BUFFER_BYTES * index)
        # A compressed buffer begins with its unpacked length. Empty buffers have no such length.
        if length > 0 and compressed:
            unpacked_length = _number(data, body + offset, "q")
            if unpacked_length >= 0:  # −1: this buffer is stored as it is
                length = unpacked_length
        unpacked_bytes += max(0, length)  # a negative length must not take from the others
    return MessageSize(rows, unpacked_bytes, compressed)


# Flatbuffers. A table begins with the distance back to its vtable, which lists the offsets of the table's fields. A
# reference to a table or vector is the distance from the reference to it. Position 0 stands for what is left out: no
# field can lie there.
#
# Of a table at 40 that begins with the number 12, the vtable is at 40 - 12 = 28. If the entry of a field there is 8,
# the field is at 40 + 8 = 48; if it is a reference, and the number there is 100, it refers to the table at 148.


def _number(data: memoryview, position: int, form: str) -> int:
    """A number; 0 if its field is left out, which stands for that.

    Args:
        position: where it is; 0 where `_field` has found nothing.
        form: a letter of `struct`: `B` is one byte, `i` and `I` are four, `q` is eight; capitals have no sign.
    """
    if position < 0:
        raise ValueError("a header of it points outside of it")
    return int(struct.unpack_from(f"<{form}", data, position)[0]) if position else 0


def _follow(data: memoryview, position: int) -> int:
    """Where the table or vector begins that the field at a position refers to; 0 if the field is left out."""
    return position + _number(data, position, "I") if position else 0


def _root_table(data: memoryview, position: int) -> int:
    """Where the outermost table of a flatbuffer begins. The first 4 bytes of the flatbuffer are the distance to it."""
    if position < 0:
        raise ValueError("a header of it points outside of it")
    return int(position + struct.unpack_from("<I", data, position)[0])


def _field(data: memoryview, table: int, number: int) -> int:
    """Where a field of a table is; 0 if it is left out."""
    if not table:
        return 0
    vtable = table - int(struct.unpack_from("<i", data, table)[0])
    if vtable < 0:
        raise ValueError("a header of it points outside of it")
    # A vtable has its own size and the table's, 2 bytes each, then 2 bytes a field. Trailing fields may be cut off.
    vtable_size = int(struct.unpack_from("<H", data, vtable)[0])
    entry = 4 + 2 * number
    if entry >= vtable_size:
        return 0
    offset = int(struct.unpack_from("<H", data, vtable + entry)[0])
    return table + offset if offset else 0


def _vector(data: memoryview, position: int) -> tuple[int, int]:
    """Where the first element of a vector is, and how many there are."""
    vector = _follow(data, position)
    # A vector is the number of its elements, in 4 bytes, and then the elements.
    return (vector + 4, _number(data, vector, "I")) if vector else (0, 0)
