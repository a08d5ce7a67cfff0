"""The documents of a run's table by length, and what is trained of them.

They are those of the train split after filters, duplicates and copies, before `max_length`, so that other lengths can
be compared. What only the configured length leaves out is among them, as often as its source on average. Of sources
with weights the copies are those of the configured length: weights are shares of packed tokens, which another length
would shift slightly.
"""

import numpy as np
from numpy.typing import NDArray

from ...schemas.ragged import begins_of, offsets_of, ranges
from ...schemas.rows import SpanKind, example_id
from ...schemas.tables.reasons import NOT_DRAWN, OUTCOMES
from ...stages.forecast import LengthStats
from ...stages.select.copies import later_ones
from ..encode.parts import EncodedPart, Spans
from ..pack.outcomes import BY_LENGTH
from ..pack.pack import Selected
from ..pack.table import HELD_OUT

MOST = 1_000_000
"""About the most documents that are read. It takes about 50 MB and two seconds."""
TEXT = 0.9
"""Data with at least this share of its tokens in plain texts counts as plain text, where every piece can be trained
alone. What is trained says nothing of it: of chats with a few huge answers, nearly all tokens are trained."""
NAMED = 3
"""How many of the longest documents are named."""
_NOT_DRAWN = OUTCOMES.index(NOT_DRAWN)


def read_documents(selected: Selected) -> LengthStats:
    """The documents of a run. If there are more than `MOST`, they are those of every second, third, … part.

    Raises:
        IntegrityError: a part cannot be read.
    """
    table, copies = selected.table, _copies(selected)
    step, starts = max(1, -(-len(copies) // MOST)), table.origins.starts.tolist()
    taken, spans, count = [np.zeros(0, np.int64)], [np.zeros((3, 0), np.int32)], 0
    plain = [np.zeros(0, np.bool_)]
    for place, first in list(zip(table.places, starts, strict=False))[::step]:
        for batch in EncodedPart(place.path).batches:
            mine, its = copies[first : first + batch.num_rows] > 0, Spans.of(batch, table.masks[place.source])
            taken.append(np.flatnonzero(mine) + first)
            plain.append(_are_texts(its)[mine])
            sizes = np.diff(its.offsets)
            trained = np.repeat(mine, sizes) & its.supervised
            owners = np.repeat(np.cumsum(mine, dtype=np.int32) - np.int32(1) + np.int32(count), sizes)
            spans.append(np.stack([column[trained] for column in (owners, begins_of(its.ends, its.offsets), its.ends)]))
            first, count = first + batch.num_rows, count + len(taken[-1])
    documents, (owners, begins, ends) = np.concatenate(taken), np.concatenate(spans, axis=1)
    lengths, often = table.documents.length[documents], copies[documents]
    tokens = lengths * often.astype(np.int64)
    texts = int(tokens[np.concatenate(plain)].sum()) >= TEXT * int(tokens.sum()) > 0
    longest = np.argsort(-lengths, kind="stable")[:NAMED].tolist()
    named = [(_id_of(selected, int(documents[one])), int(lengths[one])) for one in longest]
    if often.max(initial=0) > 1:
        each = np.repeat(np.arange(len(lengths)), often)
        low, high = (np.searchsorted(owners, each, side=side) for side in ("left", "right"))
        take = ranges(low, high - low)
        owners, begins, ends = np.repeat(np.arange(len(each), dtype=np.int32), high - low), begins[take], ends[take]
        lengths = lengths[each]
    return LengthStats(lengths, owners, begins, ends, named, texts, int(copies.sum(dtype=np.int64)))


def _are_texts(spans: Spans) -> NDArray[np.bool_]:
    """(K,) whether each document is a plain text, without prompt, completion or turns."""
    others = offsets_of(~np.isin(spans.kind, (SpanKind.TEXT, SpanKind.SPECIAL)))
    found: NDArray[np.bool_] = others[spans.offsets[1:]] == others[spans.offsets[:-1]]
    return found


def _copies(selected: Selected) -> NDArray[np.uint16]:
    """(N,) how often each document of the table counts."""
    documents, bounds = selected.table.documents, selected.table.bounds.tolist()
    copies = documents.copies.copy()
    for source, first, last in zip(selected.config.sources, bounds, bounds[1:], strict=False):
        some = documents.at(slice(first, last))
        drawn = some.copies[np.isin(some.outcome, (0, _NOT_DRAWN)) & ~some.has(HELD_OUT)]
        often = drawn.mean() if len(drawn) else source.repeat or 1
        left_out = np.flatnonzero(np.isin(some.outcome, BY_LENGTH))
        copies[left_out + first] = np.diff(np.floor(np.arange(len(left_out) + 1) * often))
    rows = np.flatnonzero(copies)
    if selected.config.duplicates == "drop" and len(rows) > np.count_nonzero(documents.copies):
        # A run compares only what the length leaves in.
        copies[rows[later_ones(documents.first_digest[rows], documents.second_digest[rows])]] = 0
    copies[documents.has(HELD_OUT)] = 0
    return copies


def _id_of(selected: Selected, document: int) -> str:
    """The example id of a document of the table."""
    source, file, line, sub = selected.table.origins.place(selected.table.documents, document)
    return example_id(list(selected.ledger.sources)[source], file, line, sub)
