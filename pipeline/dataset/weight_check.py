"""Checks the loss weights of packed rows."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from ...schemas.ledger import Ledger
from ...schemas.rows import IGNORE_INDEX, WEIGHTS
from ...stages.arrays import list_lengths, view
from .padding_check import first_token


def check_weights(batch: pa.RecordBatch) -> Iterator[tuple[int, str]]:
    """Yield (row, problem) for the first packed row that breaks each invariant; nothing for rows without the column.

    The invariants: one weight for each token; it is finite, positive where there is a label, and 0 elsewhere.
    """
    if WEIGHTS not in batch.schema.names:
        return
    weights, labels = (batch.column(name) for name in (WEIGHTS, "labels"))
    sizes = list_lengths(labels)
    other = list_lengths(weights) != sizes
    if other.any():
        yield int(np.argmax(other)), f"{WEIGHTS} has another length than labels"
        return
    flat, trained = view(weights.flatten()), view(labels.flatten()) != IGNORE_INDEX
    rows = np.repeat(np.arange(batch.num_rows), sizes)
    for bad, what in (
        (~np.isfinite(flat) | (flat < 0), "a loss weight is negative or not finite"),
        (trained & ~(flat > 0), "a trained token has no loss weight"),
        (~trained & (flat != 0), "a token without a label has a loss weight"),
    ):
        yield from first_token(bad, rows, what)


def weight_sum(batch: pa.RecordBatch) -> float:
    """The sum of all weights of a batch; 0 without the column."""
    if WEIGHTS not in batch.schema.names:
        return 0.0
    return float(view(batch.column(WEIGHTS).flatten()).sum(dtype=np.float64))


def differing_sum(ledger: Ledger, found: float) -> str | None:
    """What is wrong with the ledger's sum of weights, beside that of all shards; None if they agree up to rounding."""
    said = sum(source.weight_trained for source in ledger.sources.values())
    if np.isclose(said, found, rtol=1e-9, atol=0):
        return None
    return f"the ledger's loss weights add up to {said:.9g}, but those of the shards to {found:.9g}"
