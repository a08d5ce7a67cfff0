"""The documents of a run's table by length, and what is trained of them.

They are those of the train split after filters, duplicates and copies, before `max_length`, so that other lengths can
be compared. Documents that only the configured length leaves out are among them, with the average number of copies of
their source. Sources with weights have the copies that they have at the configured length: weights are shares of packed
tokens, which another length would shift slightly.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....schemas.ragged import offsets_of, ranges
from ....schemas.rows import example_id
from ....schemas.tables.reasons import NOT_DRAWN, OUTCOMES
from ....stages.forecast.length_stats import LengthStats
from ....stages.forecast.pair_stats import PairStats
from ....stages.select.copies import is_later_copy
from ....stages.select.truncate import PairLengths
from ...pack.outcomes import BY_LENGTH, limits_of
from ...pack.pack import Selected
from ...pack.table import HELD_OUT

PLAIN_TEXT_SHARE = 0.9
"""Data with at least this share of its tokens in plain texts counts as plain text, where every piece can be trained
alone. What is trained says nothing of it: of chats with a few huge answers, nearly all tokens are trained."""
NAMED = 3
"""How many of the longest documents are named."""
_PACKED = OUTCOMES.index("")
"""The number by which the table says that a document is packed."""
_NOT_DRAWN = OUTCOMES.index(NOT_DRAWN)
"""The number by which it says that the weight of its source did not draw a document."""


def read_documents(selected: Selected) -> LengthStats:
    """The documents of a run, or a sample of them: those of which the table has the trained spans.

    The parts are not read again: their trained spans were kept when the table was made.
    """
    sample = _read_sample(selected)
    doc_ids = sample.doc_ids
    lengths = selected.table.documents.length[doc_ids]
    tokens = lengths * sample.copies.astype(np.int64)
    tokens_in_all = int(tokens.sum())
    plain_tokens = int(tokens[sample.plain_texts].sum())
    bounds = sample.bounds
    # A document that is packed three times counts three times: copies of 2 1 3 are of the documents 0 0 1 2 2 2.
    document_of_copy = np.repeat(np.arange(len(doc_ids)), sample.copies)
    if len(document_of_copy) > len(doc_ids):
        # And so do its trained spans: with 2 1 1 spans each, those are 0 1 0 1 2 3 3 3.
        offsets = offsets_of(sample.span_counts)
        bounds = bounds[ranges(offsets[document_of_copy], sample.span_counts[document_of_copy])]
    is_sample = len(document_of_copy) < sample.in_all
    return LengthStats(
        lengths=lengths[document_of_copy],
        owners=np.repeat(np.arange(len(document_of_copy), dtype=np.int32), sample.span_counts[document_of_copy]),
        begins=np.ascontiguousarray(bounds[:, 0]),
        ends=np.ascontiguousarray(bounds[:, 1]),
        longest=_longest(selected, doc_ids, lengths),
        texts=tokens_in_all > 0 and plain_tokens >= PLAIN_TEXT_SHARE * tokens_in_all,
        in_all=sample.in_all,
        packed=_packed_lengths(selected) if is_sample else None,
    )


def read_pairs(selected: Selected) -> PairStats:
    """The preference pairs of a run, or a sample of them. The two trained spans of a pair are its completions."""
    config = selected.config
    sample = _read_sample(selected)
    assert (sample.span_counts == 2).all()
    # Of a pair with a prompt of 5 tokens and completions of 3 and 4: (5, 8) and (8, 12).
    completions = sample.bounds.reshape(-1, 2, 2)
    prompt = completions[:, 0, 0]
    chosen = completions[:, 0, 1] - completions[:, 0, 0]
    rejected = completions[:, 1, 1] - completions[:, 1, 0]
    parts = PairLengths(prompt, chosen, rejected)
    limits = limits_of(config, pairs=True)
    # Where both sides stand in one row (`both`), a run keeps so many of its tokens free for padding: with multiples of
    # 8, a length of 64 keeps pairs of 57 tokens, so a pair of 57 needs 64.
    padding = config.pack.alignment.document - 1 if limits.both else 0
    lengths = parts.limited(limits) + np.int32(padding)
    pair_of_copy = np.repeat(np.arange(len(lengths)), sample.copies)
    return PairStats(
        parts=PairLengths(*(part[pair_of_copy] for part in parts.parts)),
        lengths=lengths[pair_of_copy],
        are_packed=selected.packs,
        longest=_longest(selected, sample.doc_ids, lengths),
        in_all=sample.in_all,
    )


class _Sample(NamedTuple):
    """The S documents that are compared: of those with trained spans in the table, all that count."""

    doc_ids: NDArray[np.int64]
    """(S,) ascending."""
    copies: NDArray[np.uint16]
    """(S,) how often each counts."""
    span_counts: NDArray[np.int32]
    """(S,) how many trained spans each has."""
    plain_texts: NDArray[np.bool_]
    """(S,) whether each is a plain text."""
    bounds: NDArray[np.int32]
    """(K, 2) the first token of each span in its document, and one past its last."""
    in_all: int
    """How many documents of the table count, with copies."""


def _read_sample(selected: Selected) -> _Sample:
    """The documents of which the table has the trained spans, without those that have no copies."""
    spans = selected.table.trained_spans
    assert spans is not None
    copies = _copies(selected)
    is_counted = copies[spans.doc_ids] > 0
    doc_ids = spans.doc_ids[is_counted]
    return _Sample(
        doc_ids=doc_ids,
        copies=copies[doc_ids],
        span_counts=spans.counts[is_counted],
        plain_texts=spans.plain_texts[is_counted],
        # Of three documents with 2, 1 and 2 spans of which the second does not count: the spans 0 1 3 4.
        bounds=spans.bounds[np.repeat(is_counted, spans.counts)],
        in_all=int(copies.sum(dtype=np.int64)),
    )


def _longest(selected: Selected, doc_ids: NDArray[np.int64], lengths: NDArray[np.int32]) -> list[tuple[str, int]]:
    """(id, tokens) of the few longest documents, the longest first."""
    # Stable: of equally long ones, the first are named.
    longest = np.argsort(-lengths, kind="stable")[:NAMED].tolist()
    return [(_id_of(selected, int(doc_ids[place])), int(lengths[place])) for place in longest]


def copies_to_compare(selected: Selected) -> NDArray[np.uint16]:
    """(N,) how often each document of the table counts; 0 also for documents without trained spans in the table, which
    `read_documents` leaves out.
    """
    copies = _copies(selected)
    sample = selected.table.trained_spans
    assert sample is not None
    if len(sample.doc_ids) < len(copies):
        is_sampled = np.zeros(len(copies), np.bool_)
        is_sampled[sample.doc_ids] = True
        copies[~is_sampled] = 0
    return copies


def _packed_lengths(selected: Selected) -> NDArray[np.int32]:
    """(P,) tokens that are packed of each document of the train split, once for each copy."""
    documents = selected.table.documents
    train = (documents.copies > 0) & ~documents.has(HELD_OUT)
    return np.repeat(documents.kept[train], documents.copies[train])


def _copies(selected: Selected) -> NDArray[np.uint16]:
    """(N,) how often each document of the table would be packed in the train split if no length left it out.

    Those that the run packs count as there. Those that its length leaves out count as often as their source's other
    documents on average.
    """
    documents = selected.table.documents
    copies = documents.copies.copy()
    # The documents of a source are `first` to `last - 1` of the table.
    source_bounds = selected.table.bounds.tolist()
    for source, (first, last) in zip(selected.config.sources, pairwise(source_bounds), strict=True):
        of_source = documents.at(slice(first, last))
        # Documents that the weight of the source did not draw have 0 copies, and belong to the average: of four that
        # fit, of which two are packed once, a document is packed 0.5 times.
        fits = np.isin(of_source.outcome, (_PACKED, _NOT_DRAWN))
        drawn_copies = of_source.copies[fits & ~of_source.has(HELD_OUT)]
        average = source.repeat or 1.0  # as configured, if no document fits
        if len(drawn_copies):
            average = float(drawn_copies.mean())
        # Another length would leave these documents in.
        too_long = np.flatnonzero(np.isin(of_source.outcome, BY_LENGTH))
        # An average of 1.5 gives 1, 2, 1, 2, …: whole copies, whose sum is right to one copy.
        copies[too_long + first] = np.diff(np.floor(np.arange(len(too_long) + 1) * average))
    if selected.config.duplicates == "drop":
        # The run compared digests only of what its length leaves in, so what was too long may have equals.
        counted = np.flatnonzero(copies)
        has_added = len(counted) > np.count_nonzero(documents.copies)
        if has_added:
            is_later = is_later_copy(documents.first_digest[counted], documents.second_digest[counted])
            copies[counted[is_later]] = 0
    copies[documents.has(HELD_OUT)] = 0
    return copies


def _id_of(selected: Selected, document: int) -> str:
    """The example id of a document of the table."""
    source, file, line, sub = selected.table.origins.place(selected.table.documents, document)
    return example_id(list(selected.ledger.sources)[source], file, line, sub)
