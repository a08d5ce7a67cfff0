"""Checks the invariants of a shard of preference pairs."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...stages.arrays import list_lengths, view


def check_pairs(batch: pa.RecordBatch, max_length: int) -> Iterator[tuple[int, str]]:
    """Yield (row, problem) for the first pair that breaks each invariant.

    The invariants: completions are not empty and differ; the prompt with either completion fits into `max_length`; one
    document per row.
    """
    prompt, chosen, rejected = _lengths(batch)
    for name, lengths in (("chosen_ids", chosen), ("rejected_ids", rejected)):
        yield from first_row(lengths == 0, f"{name} is empty")
        yield from first_row(
            prompt + lengths > max_length, f"prompt_ids and {name} are longer than max_length ({max_length:,})"
        )
    yield from first_row(list_lengths(batch.column("doc_ids")) != 1, "does not have one doc id")
    same = np.zeros(batch.num_rows, dtype=np.bool_)
    for row in np.flatnonzero((chosen == rejected) & (chosen > 0)).tolist():
        left, right = (view(batch.column(name)[row].values) for name in ("chosen_ids", "rejected_ids"))
        same[row] = np.array_equal(left, right)
    yield from first_row(same, "chosen_ids and rejected_ids are the same")


def count_pairs(batch: pa.RecordBatch) -> tuple[int, int, int]:
    """Return the number of tokens, the number of completion tokens with a loss, and the most documents in a row."""
    prompt, chosen, rejected = _lengths(batch)
    # Without a prompt, nothing predicts a completion's first token.
    trained = chosen + rejected - 2 * (prompt == 0)
    return (
        int((prompt + chosen + rejected).sum()),
        int(trained.sum()),
        int(list_lengths(batch.column("doc_ids")).max(initial=0)),
    )


def _lengths(batch: pa.RecordBatch) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    return (
        list_lengths(batch.column("prompt_ids")),
        list_lengths(batch.column("chosen_ids")),
        list_lengths(batch.column("rejected_ids")),
    )


def first_row(bad: NDArray[np.bool_], what: str) -> Iterator[tuple[int, str]]:
    """Yield the first row that is wrong, with what is wrong; nothing if none is."""
    if bad.any():
        yield int(np.argmax(bad)), what
