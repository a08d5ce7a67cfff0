"""Makes packed rows from their layout: pieces of documents, with labels and positions."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.alignment import Alignment
from ...schemas.ragged import offsets_of
from ...stages.arrays import view
from ...stages.pack.layout import LaidOut, PlannedPieces, lay_out
from ..store.open import Store
from .planning import ShardPlan, read_rows
from .segments import Account, Segments, chunks, mapped


def packed_batches(
    out: Store, layout: str, shard: ShardPlan, segments: Segments, account: Account, alignment: Alignment, pad_id: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a shard, in batches.

    Args:
        layout: name of the window's layout in `out`.
        account: counts what is laid out.
    """
    row_offsets = view(mapped(out.local(f"{layout}-rows.arrow")).column(0))
    row_offsets = row_offsets[shard.first_row : shard.last_row + 1] - shard.first_piece
    columns = read_rows(out.local(f"{layout}-pieces.arrow"), shard.first_piece, shard.last_piece)
    padded = alignment.padded(columns[2], row_offsets)
    ends = np.cumsum(padded, dtype=np.int64)[row_offsets[1:] - 1]
    account.tokens = int(ends[-1])
    account.max_docs = int(np.diff(row_offsets).max())
    for first, last in chunks(ends):
        here = slice(int(row_offsets[first]), int(row_offsets[last]))
        some = [column[here] for column in columns]
        laid = lay_out_pieces(some, row_offsets[first : last + 1], segments, alignment, pad_id)
        counts = (laid.trained, laid.heads, padded[here] - some[2], padded[here])
        account.add(segments.sources[some[4]], *counts)
        if laid.weights is not None:
            account.weigh(segments.sources[some[4]], laid.weights)
        yield laid.batch


def lay_out_pieces(
    columns: Sequence[NDArray[Any]],
    row_offsets: NDArray[np.int64],
    segments: Segments,
    alignment: Alignment,
    pad_id: int,
) -> LaidOut:
    """Collect the planned pieces of some rows, with the tokens and runs of their segments.

    Args:
        columns: the columns of `planning.PIECES`; with `scale`, rows have `loss_weights`.
        row_offsets: (R + 1,) first piece of each row; may start at any number.
    """
    doc_ids, starts, lengths, repeated, numbers, begins, run_begins, run_counts, *scales = columns
    run_ends, supervised = segments.runs(numbers, run_begins, run_counts)
    first, last = (begins + starts).tolist(), (begins + starts + lengths).tolist()
    tokens = zip(segments.tokens(numbers), first, last, strict=True)
    pieces = PlannedPieces(
        tokens=[whole[a:b] for whole, a, b in tokens],
        starts=starts,
        lengths=lengths,
        repeated=repeated,
        doc_ids=doc_ids,
        row_offsets=row_offsets - row_offsets[0],
        run_ends=run_ends,
        run_supervised=supervised,
        run_offsets=offsets_of(run_counts),
        run_weights=segments.weights(numbers, run_begins, run_counts) if scales else None,
        scales=scales[0] if scales else None,
    )
    return lay_out(pieces, alignment, pad_id)
