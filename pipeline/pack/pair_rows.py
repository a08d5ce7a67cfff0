"""Rows of preference pairs: prompt, chosen and rejected completion."""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.ragged import offsets_of
from ...schemas.rows import PREFERENCE
from ...stages.arrays import lists
from ...stages.select.preference_limits import PairLimits
from .segments import Segments
from .table import Documents, pair_lengths


def lay_out_pairs(
    some: Documents, segments: Segments, doc_ids: NDArray[np.int64], limits: PairLimits
) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
    """Return the rows of R pairs, one each, and (R,) their completion tokens without a loss: without a prompt, nothing
    predicts a completion's first token.
    """
    lengths = pair_lengths(segments.runs(some)[0])
    cut = limits.cut(lengths)
    begins, kept = cut.begins, cut.kept
    chosen, rejected = lengths.prompt + begins.chosen, lengths.prompt + lengths.chosen + begins.rejected
    starts, lengths_kept = (begins.prompt, chosen, rejected), (kept.prompt, kept.chosen, kept.rejected)
    columns = [
        lists(offsets_of(length), np.concatenate(segments.tokens(some, start, length)), field.type)
        for start, length, field in zip(starts, lengths_kept, list(PREFERENCE)[:3], strict=True)
    ]
    columns.append(lists(np.arange(len(doc_ids) + 1), doc_ids, PREFERENCE.field("doc_ids").type))
    heads = np.where(kept.prompt == 0, 2, 0).astype(np.int64)
    return pa.RecordBatch.from_arrays(columns, schema=PREFERENCE), heads
