"""The documents of a run's table by length, and what is trained of them.

They are those of the train split after filters, duplicates and copies, before `max_length`, so that other lengths can
be compared. What only the configured length leaves out is among them, as often as its source on average. Of sources
with weights the copies are those of the configured length: weights are shares of packed tokens, which another length
would shift slightly.
"""

import numpy as np
from numpy.typing import NDArray

from ...schemas.ragged import offsets_of, ranges
from ...schemas.rows import example_id
from ...schemas.tables.reasons import NOT_DRAWN, OUTCOMES
from ...stages.forecast import LengthStats
from ...stages.select.copies import is_later_copy
from ..pack.outcomes import BY_LENGTH
from ..pack.pack import Selected
from ..pack.table import HELD_OUT

PLAIN_TEXT_SHARE = 0.9
"""Data with at least this share of its tokens in plain texts counts as plain text, where every piece can be trained
alone. What is trained says nothing of it: of chats with a few huge answers, nearly all tokens are trained."""
NAMED = 3
"""How many of the longest documents are named."""
_NOT_DRAWN = OUTCOMES.index(NOT_DRAWN)


def read_documents(selected: Selected) -> LengthStats:
    """The documents of a run, or a sample of them: those of which the table has the trained spans.

    The parts are not read again: their trained spans were kept when the table was made.
    """
    table = selected.table
    sample = table.trained_spans
    assert sample is not None
    copies = _copies(selected)
    counted = copies[sample.doc_ids] > 0
    doc_ids = sample.doc_ids[counted]
    lengths = table.documents.length[doc_ids]
    copies_of_each = copies[doc_ids]
    span_counts = sample.counts[counted]
    bounds = sample.bounds[np.repeat(counted, sample.counts)]
    tokens = lengths * copies_of_each.astype(np.int64)
    plain_tokens = int(tokens[sample.plain_texts[counted]].sum())
    longest = np.argsort(-lengths, kind="stable")[:NAMED].tolist()
    named = [(_id_of(selected, int(doc_ids[place])), int(lengths[place])) for place in longest]
    # A document that is packed three times counts three times.
    document_of_copy = np.repeat(np.arange(len(doc_ids)), copies_of_each)
    if len(document_of_copy) > len(doc_ids):
        bounds = bounds[ranges(offsets_of(span_counts)[document_of_copy], span_counts[document_of_copy])]
    return LengthStats(
        lengths=lengths[document_of_copy],
        owners=np.repeat(np.arange(len(document_of_copy), dtype=np.int32), span_counts[document_of_copy]),
        begins=np.ascontiguousarray(bounds[:, 0]),
        ends=np.ascontiguousarray(bounds[:, 1]),
        longest=named,
        texts=plain_tokens >= PLAIN_TEXT_SHARE * int(tokens.sum()) > 0,
        in_all=int(copies.sum(dtype=np.int64)),
        packed=_packed_lengths(selected) if len(sample.doc_ids) < len(copies) else None,
    )


def copies_to_compare(selected: Selected) -> NDArray[np.uint16]:
    """(N,) how often each document of the table counts among those of `read_documents`; 0 for the others."""
    copies = _copies(selected)
    sample = selected.table.trained_spans
    assert sample is not None
    if len(sample.doc_ids) < len(copies):
        is_sampled = np.zeros(len(copies), np.bool_)
        is_sampled[sample.doc_ids] = True
        copies[~is_sampled] = 0
    return copies


def _packed_lengths(selected: Selected) -> NDArray[np.int32]:
    """(P,) tokens that are packed of each document of the train split, copies apart."""
    documents = selected.table.documents
    train = (documents.copies > 0) & ~documents.has(HELD_OUT)
    return np.repeat(documents.kept[train], documents.copies[train])


def _copies(selected: Selected) -> NDArray[np.uint16]:
    """(N,) how often each document of the table counts."""
    documents = selected.table.documents
    bounds = selected.table.bounds.tolist()
    copies = documents.copies.copy()
    for source, first, last in zip(selected.config.sources, bounds, bounds[1:], strict=False):
        of_source = documents.at(slice(first, last))
        fits = np.isin(of_source.outcome, (0, _NOT_DRAWN))
        drawn_copies = of_source.copies[fits & ~of_source.has(HELD_OUT)]
        average = drawn_copies.mean() if len(drawn_copies) else source.repeat or 1
        too_long = np.flatnonzero(np.isin(of_source.outcome, BY_LENGTH))
        # An average of 1.5 gives 1, 2, 1, 2, …: whole copies, whose sum is right to one copy.
        copies[too_long + first] = np.diff(np.floor(np.arange(len(too_long) + 1) * average))
    rows = np.flatnonzero(copies)
    if selected.config.duplicates == "drop" and len(rows) > np.count_nonzero(documents.copies):
        # A run compares digests of what its length leaves in; what another length would leave in was not compared.
        copies[rows[is_later_copy(documents.first_digest[rows], documents.second_digest[rows])]] = 0
    copies[documents.has(HELD_OUT)] = 0
    return copies


def _id_of(selected: Selected, document: int) -> str:
    """The example id of a document of the table."""
    source, file, line, sub = selected.table.origins.place(selected.table.documents, document)
    return example_id(list(selected.ledger.sources)[source], file, line, sub)
