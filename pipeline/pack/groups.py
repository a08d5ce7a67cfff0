"""Which documents may share tokens in a row, by `pack.share`:

    row      neighbours in the table that were made of one source row
    group    all documents of a source that have one `group`, wherever they stand; of those without one, as for `row`

Of these, the documents that one split packs equally often are a group. What they share is found from their tokens
(`units`), so that a group without a common beginning costs time, and nothing else.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...schemas.digests import text_number
from ...schemas.fingerprint import mix64
from ...schemas.ragged import offsets_of, ranges, starts_of
from ..store.local import open_unnamed_file
from .table import HELD_OUT, SPLIT, Table

if TYPE_CHECKING:
    import pyarrow as pa

GROUP_BYTES = 128 << 20
"""Memory in which documents of a group are sorted together: 16 million tokens, or 260,000 documents of few tokens. Of a
larger group, the documents of each so many bytes share, in the order of the table."""
_TOKEN_BYTES = 8
"""A token is held twice: to be compared, and as bytes that sort as tokens do."""
_DOCUMENT_BYTES = 512
"""What the arrays and the bytes of a document take besides."""
_TEXTS = 1 << 16
"""Texts of groups that are in memory at once."""


def groups_of_rows(table: Table, documents: slice) -> NDArray[np.int64]:
    """(N,) a number for each document of a slice: equal for neighbours that were made of the same source row."""
    lines = table.documents.line[documents]
    parts = np.searchsorted(table.origins.starts, np.arange(documents.start, documents.stop), side="right")
    differs = (lines[1:] != lines[:-1]) | (parts[1:] != parts[:-1])
    return np.concatenate(([0], np.cumsum(differs))).astype(np.int64)[: len(lines)]


def groups_to_draw(table: Table, documents: slice) -> NDArray[np.int64]:
    """(N,) a number for each document of a source, from 0 on: equal for documents that may share tokens.

    A source that is to be packed 2.3 times has two copies of each document, and a third one of some that are drawn.
    Documents that share must have equally many copies, so a group is drawn whole, or not at all.
    """
    if table.group_keys is None:
        return groups_of_rows(table, documents)
    return np.unique(table.group_keys[documents], return_inverse=True)[1].astype(np.int64)


def set_group_keys(table: Table, scratch: Path) -> None:
    """Give each document the key of its group, which is that of its row if it has no group, in place.

    Groups of two sources have different keys. Should two groups have one key, which one in 10**19 pairs of groups has,
    they are compared, and share what is equal.

    Args:
        scratch: a folder for an anonymous file.
    """
    count = len(table.documents)
    groups = table.groups
    file = open_unnamed_file(scratch, 8 * max(count, 1))
    keys = np.memmap(file, np.uint64, "r+", shape=(max(count, 1),))[:count]
    for source, documents in table.slices():
        parts = np.searchsorted(table.origins.starts, np.arange(documents.start, documents.stop), side="right")
        rows = (parts.astype(np.uint64) << np.uint64(32)) + table.documents.line[documents].astype(np.uint64)
        keys[documents] = mix64(rows, 0)
        if groups is None:
            continue
        for first in range(documents.start, documents.stop, _TEXTS):
            last = min(first + _TEXTS, documents.stop)
            _set_keys_of_texts(keys[first:last], groups.slice(first, last - first), source)
    table.group_keys = keys


def _set_keys_of_texts(keys: NDArray[np.uint64], groups: "pa.Array", source: int) -> None:
    """Set the keys of those of K documents that have a group, in place."""
    for place, group in enumerate(groups.to_pylist()):
        if group:
            keys[place] = text_number(group.encode(), source)


def groups_of_several(
    table: Table, copies: NDArray[np.uint16] | None = None
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield the groups of documents that may share tokens: the documents of some groups, group by group, and (G + 1,)
    where each group begins among them. Documents that are alone in their group are left out before anything is done for
    each: most data has millions of them.

    With `pack.share: row`, a group that stretches over two slices of the table, as one of a million does, shares less.

    Args:
        copies: (N,) how often each document of the table counts; None: as often as it is packed, if it is not cut.
    """
    if table.group_keys is not None:
        slices = [_counted(table, documents, copies) for _, documents in table.slices()]
        doc_ids = np.concatenate([np.zeros(0, np.int64), *(places for places, _ in slices)])
        often = np.concatenate([np.zeros(0, np.uint16), *(copies_here for _, copies_here in slices)])
        yield _grouped_by_key(table, doc_ids, often)
        return
    for _, documents in table.slices():
        doc_ids, often = _counted(table, documents, copies)
        rows = groups_of_rows(table, documents)[doc_ids - documents.start]
        begins = _begins(rows, (table.documents.flags[doc_ids] & HELD_OUT) > 0, often)
        yield _several(doc_ids, begins)


def _counted(
    table: Table, documents: slice, copies: NDArray[np.uint16] | None
) -> tuple[NDArray[np.int64], NDArray[np.uint16]]:
    """(K,) those of a slice of documents that count, and (K,) how often."""
    columns = table.documents.at(documents)
    often = np.where(columns.has(SPLIT), 0, columns.copies) if copies is None else copies[documents]
    places = np.flatnonzero(often)
    return places + documents.start, often[places]


def _grouped_by_key(
    table: Table, doc_ids: NDArray[np.int64], often: NDArray[np.uint16]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The groups of several among K documents, in the order of their first documents."""
    assert table.group_keys is not None
    keys = table.group_keys[doc_ids]
    held_out = (table.documents.flags[doc_ids] & HELD_OUT) > 0
    order = np.lexsort((often, held_out, keys))
    doc_ids = doc_ids[order]
    begins = _begins(keys[order], held_out[order], often[order])
    tokens = (table.documents.high[doc_ids] - table.documents.low[doc_ids]).astype(np.int64)
    bytes_before = starts_of(_TOKEN_BYTES * tokens + _DOCUMENT_BYTES)
    bytes_before -= np.repeat(bytes_before[begins], np.diff(np.append(begins, len(doc_ids))))
    begins = np.union1d(begins, _begins(bytes_before // GROUP_BYTES))
    documents, offsets = _several(doc_ids, begins)
    sizes = np.diff(offsets)
    by_first = np.argsort(documents[offsets[:-1]], kind="stable")
    return documents[ranges(offsets[:-1][by_first], sizes[by_first])], offsets_of(sizes[by_first])


def _begins(*keys: NDArray[np.integer] | NDArray[np.bool_]) -> NDArray[np.int64]:
    """Where any of some keys of K sorted documents differs from that of the document before, the first one included."""
    differs = np.zeros(len(keys[0]), np.bool_)
    differs[:1] = True
    for key in keys:
        differs[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(differs)


def _several(doc_ids: NDArray[np.int64], begins: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The groups of at least two documents, as `groups_of_several`."""
    sizes = np.diff(np.append(begins, len(doc_ids)))
    return doc_ids[np.repeat(sizes > 1, sizes)], offsets_of(sizes[sizes > 1])
