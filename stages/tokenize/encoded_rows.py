"""Batches of `schemas.rows.ENCODED`, and examples that were given as tokens."""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from ...schemas.errors import RowRejectedError
from ...schemas.ragged import lengths_of, offsets_of
from ...schemas.rows import ENCODED, Example
from ..arrays import digests as binary
from ..arrays import lists, numbers, strings
from .token_runs import token_lists

BATCH_CHARACTERS = 1 << 20
"""Characters encoded at once; their tokens still fit into a core's cache."""
BATCH_EXAMPLES = 4096


@dataclass(slots=True)
class TokenBatch:
    """Examples that were given as tokens."""

    examples: list[Example] = field(default_factory=list)
    ids: list[NDArray[np.int32]] = field(default_factory=list)
    size: int = 0

    def add(self, example: Example, vocabulary: int) -> None:
        """Append an example.

        Raises:
            RowRejectedError: `bad_ids`, for an id that the tokenizer does not have; `bad_trained`.
        """
        ids = np.array(example.ids, dtype=np.int64)
        if len(ids) and not (ids.min() >= 0 and ids.max() < vocabulary):
            wrong = next(one for one in ids.tolist() if not 0 <= one < vocabulary)
            raise RowRejectedError("bad_ids", f"the tokenizer has no id {wrong:,}: its ids are 0 to {vocabulary - 1:,}")
        if example.trained is not None and len(example.trained) != len(ids):
            raise RowRejectedError(
                "bad_trained", f"{len(ids):,} ids, but {len(example.trained):,} flags that say which are trained"
            )
        self.examples.append(example)
        self.ids.append(ids.astype(np.int32))
        self.size += len(ids)

    @property
    def full(self) -> bool:
        """Whether enough examples were collected for a record batch."""
        return self.size >= BATCH_CHARACTERS // 4 or len(self.examples) >= BATCH_EXAMPLES

    def finish(self) -> pa.RecordBatch:
        """The record batch."""
        lengths = lengths_of(self.ids)
        offsets = offsets_of(lengths)
        trained = [example.trained for example in self.examples]
        weights = [example.weight for example in self.examples]
        hashes = [
            xxhash.xxh3_128_digest(ids.tobytes() + _bytes(flags) + said, seed=1 + (flags is not None))
            for ids, flags, said in zip(self.ids, trained, map(_said, weights), strict=True)
        ]
        runs = token_lists(trained, weights, lengths)
        straddles = np.zeros(len(lengths), np.int64)
        return encoded_batch(self.examples, np.concatenate(self.ids), offsets, runs, hashes, straddles)


def _bytes(flags: "list[bool] | NDArray[np.bool_] | None") -> bytes:
    return b"" if flags is None else np.asarray(flags, np.uint8).tobytes()


def _said(weight: float) -> bytes:
    """What a weight adds to an example's digest: nothing for 1."""
    return b"" if weight == 1 else repr(weight).encode()


def encoded_batch(
    examples: list[Example],
    ids: NDArray[np.int32],
    offsets: NDArray[np.int64],
    runs: pa.ListArray,
    hashes: list[bytes],
    straddles: NDArray[np.int64],
) -> pa.RecordBatch:
    """A batch of `schemas.rows.ENCODED`."""
    arrays = [
        lists(offsets, ids, ENCODED.field("input_ids").type),
        runs,
        strings([example.group for example in examples]),
        binary(hashes, 16),
        numbers(np.array([example.line for example in examples], np.int32)),
        numbers(np.array([example.sub for example in examples], np.int32)),
        numbers(np.minimum(straddles, np.iinfo(np.int16).max).astype(np.int16)),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ENCODED)
