"""Digests that say which tokens of a document are kept, and which are trained, without looking at a token.

The digest of a set of tokens is a sum over its ranges `begin:end` of `hash(end) - hash(begin)`, modulo 2**64. Where one
range ends and the next begins, the two terms cancel: 0:4 and 4:9 together have the digest of 0:9. So two documents with
the same text have the same digests if the same of their tokens are kept and trained, however they are cut into pieces
or spans. The tokens 0:9 without 4 have the digest of 0:4 and 5:9, which is another.

Shapes: K documents laid end to end. A *place* is the number of a token in all of them, from 0, or the end of the last.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...schemas.fingerprint import mix64
from ...schemas.ragged import offsets_of
from ..mask.span_index import SpanIndex

_SEED = 0x6B657074
"""Any number, so that these hashes are others than the hashes that order rows."""


def range_digests(begins: NDArray[np.integer[Any]], ends: NDArray[np.integer[Any]]) -> NDArray[np.uint64]:
    """(M,) the digest of each range; 0 of an empty one.

    Args:
        begins, ends: (M,) first token of each range within its document, and one past its last token.
    """
    digests: NDArray[np.uint64] = _hashes(ends) - _hashes(begins)
    return digests


class SupervisedDigests:
    """Digests of the supervised tokens of documents, between any two places of a document. A digest is a sum, so it is
    the difference of two running sums, and many ranges are looked up at once.

    With h for the hash, documents of 5 and 4 tokens whose spans end at 2, 5 and 4 tokens, of which the second and third
    are supervised, have:

        span       begins, ends    in its document    digest         sum before it
        0          0, 2            0, 2               0              0
        1          2, 5            2, 5               h(5) - h(2)    0
        2          5, 9            0, 4               h(4) - h(0)    h(5) - h(2)
        (none)     9                                                 h(5) - h(2) + h(4) - h(0)

    Args:
        index: the spans of the documents, laid end to end.
        span_counts: (K,) spans of each document.
    """

    def __init__(self, index: SpanIndex, span_counts: NDArray[np.integer[Any]]) -> None:
        self._index = index
        # Hashes are of tokens counted within their document: equal documents have equal digests, wherever they lie.
        bases = np.repeat(index.bases[:-1], span_counts)
        digests = range_digests(index.begins[:-1] - bases, index.ends - bases)
        # (spans + 1,) the digest of all supervised tokens before each span.
        self._before: NDArray[np.uint64] = offsets_of(np.where(index.supervised, digests, np.uint64(0)), np.uint64)

    def between(self, bases: NDArray[np.int64], low: NDArray[np.int64], high: NDArray[np.int64]) -> NDArray[np.uint64]:
        """(M,) the digest of the supervised tokens of each range.

        Args:
            bases: (M,) the place where the document of each range begins.
            low, high: (M,) the places where each range begins and ends; `high` is not below `low`.
        """
        digests: NDArray[np.uint64] = self._digests_before(bases, high) - self._digests_before(bases, low)
        return digests

    def _digests_before(self, bases: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.uint64]:
        """(M,) the digest of all supervised tokens before each place, of its document and of all before it.

        Let documents of 5 and 4 tokens have spans that end at the places 2, 5 and 9, the last two of them supervised.
        Before the place 7, there are all tokens of span 1, which have h(5) - h(2), and the first two of span 2, which
        are the first two of the second document: h(2) - h(0).

        Args:
            bases, places: as in `between`: where each document begins, and a place in it or at its end.
        """
        index = self._index
        # The span that ends behind the place. At the end of a document, that is the first span of the next document. At
        # the end of the last document there is none, so one more that is not supervised stands for it.
        span = np.searchsorted(index.ends, places, side="right")
        is_supervised = np.append(index.supervised, False)[span]
        # Of a span that is not supervised, the range is empty, and so its digest 0.
        begins = np.where(is_supervised, index.begins[span], places)
        return self._before[span] + range_digests(begins - bases, places - bases)


def _hashes(tokens: NDArray[np.integer[Any]]) -> NDArray[np.uint64]:
    """(M,) the hash of each token's number within its document."""
    return mix64(tokens.astype(np.uint64), seed=_SEED)
