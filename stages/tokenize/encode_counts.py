"""Counts of encoding."""

from dataclasses import dataclass, field

import pyarrow as pa


@dataclass(slots=True)
class EncodeCounts:
    """Counts of one block's encoding, for the ledger."""

    examples: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    """Examples that could not be rendered, by reason."""
    tokens: int = 0
    """All tokens, including added ones."""
    end_of_sequence: int = 0
    special: int = 0
    straddles: int = 0
    boundaries: int = 0
    text_bytes: int = 0
    inexact: int = 0
    """Examples whose boundaries came from the reference tokenizer's offsets."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Conversations of which the template leaves something out, counted by what it leaves out; see `Rendered.dropped`.
    """
    unproved: int = 0
    """Conversations whose assistant turns could not be located."""
    unproved_rows: list[tuple[int, int, str]] = field(default_factory=list)
    """(line, example of the row or -1, why) of the first conversations with unlocated turns."""
    mixed: int = 0
    """Conversations with a turn whose thoughts or tool calls could not be located in it."""
    mixed_rows: list[tuple[int, int, str]] = field(default_factory=list)
    """(line, example of the row or -1, why) of the first of them."""

    roles: dict[str, list[int]] = field(default_factory=dict)
    """Unknown role → [conversations with it, row of the first]; see `ContentCheck`."""
    control: dict[str, list[int]] = field(default_factory=dict)
    """Special token in contents → the same."""

    def given(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Count a batch of examples that were given as tokens, and return it."""
        self.examples += batch.num_rows
        self.tokens += len(batch.column("input_ids").values)
        return batch
