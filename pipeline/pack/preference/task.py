"""Makes rows of preference pairs from their layout: prompt, chosen and rejected completion."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ....schemas.ragged import offsets_of
from ....schemas.rows import PREFERENCE
from ....stages.arrays import lists, view
from ...store.open import Store
from ..planning import ShardPlan
from ..segments import Account, Segments, chunks, mapped

_INT = pa.int32()
LAYOUT = pa.schema(
    [
        pa.field("doc_id", pa.int64(), nullable=False),
        pa.field("segment", _INT, nullable=False),
        pa.field("begin", _INT, nullable=False),
        *(pa.field(f"{part}_{what}", _INT, nullable=False) for what in ("start", "length") for part in "pcr"),
    ]
)
"""Columns of a pair to write: its document, where its tokens begin in the segment, and the range of tokens kept of the
prompt and of each completion.
"""


def _account(account: Account, sources: NDArray[np.int32], lengths: list[NDArray[np.int32]]) -> None:
    """Count the labels and tokens of rows with these lengths of prompt, chosen and rejected completion."""
    prompt, chosen, rejected = (one.astype(np.int64) for one in lengths)
    # Without a prompt, nothing predicts a completion's first token.
    heads = np.where(prompt == 0, 2, 0)
    written = prompt + chosen + rejected
    account.tokens += int(written.sum())
    account.max_docs = 1
    account.add(sources, chosen + rejected - heads, heads, np.zeros_like(heads), written)


def pair_batches(
    out: Store, layout: str, shard: ShardPlan, segments: Segments, account: Account
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a shard, in batches; see `packed_batches`."""
    rows = mapped(out.local(f"{layout}-pairs.arrow")).slice(shard.first_row, shard.last_row - shard.first_row)
    doc_ids, numbers, begins, *stretches = map(view, rows.columns)
    starts, lengths = stretches[:3], stretches[3:]
    for first, last in chunks(np.cumsum(sum(one.astype(np.int64) for one in lengths))):
        here = slice(first, last)
        mine = segments.tokens(numbers[here])
        columns = [
            _gathered(mine, begins[here] + start[here], length[here], field)
            for start, length, field in zip(starts, lengths, list(PREFERENCE)[:3], strict=True)
        ]
        columns.append(lists(np.arange(last - first + 1), doc_ids[here], PREFERENCE.field("doc_ids").type))
        _account(account, segments.sources[numbers[here]], [length[here] for length in lengths])
        yield pa.RecordBatch.from_arrays(columns, schema=PREFERENCE)


def _gathered(
    tokens: list[NDArray[np.int32]], begins: NDArray[Any], lengths: NDArray[np.int32], field: pa.Field
) -> pa.ListArray:
    """Return (R,) lists: `lengths` tokens of each row, from `begins` on."""
    stretches = [
        t[begin : begin + length] for t, begin, length in zip(tokens, begins.tolist(), lengths.tolist(), strict=True)
    ]
    return lists(offsets_of(lengths), np.concatenate(stretches), field.type)
