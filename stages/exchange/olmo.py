"""The token arrays, masks and document bounds of OLMo-core.

Rules: `src/olmo_core/data/` of OLMo-core 2.5.0 at commit fa6c501 (22 June 2026); 3.0.0 has the same. A `.npy` has no
header: numbers of one unsigned type, end to end. `NumpyFSLDataset` cuts it into rows of `sequence_length`, and a row
into documents after every end-of-sequence token. The mask has one byte a token and is not shifted. A `.csv.gz` beside
the array has a line `start,end` for each document.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...schemas.ragged import ranges
from .exchange_rows import ExchangeRows, MisfitError, fitted


def filler_of(eos_id: int, pad_id: int) -> int:
    """The id with which rows are filled up: any but the end-of-sequence token, after which the reader would cut."""
    return pad_id if pad_id != eos_id else int(eos_id == 0)


def check_bounds(rows: ExchangeRows, eos_id: int) -> None:
    """Refuse rows that the reader would not cut where their pieces end.

    The last piece of a row may end without an end-of-sequence token, because only masked padding follows it.

    Raises:
        MisfitError: a piece has the token inside; or another one follows a piece that does not end with it.
    """
    cuts = rows.ids == eos_id
    ends = rows.ends
    closed = cuts[ends - 1]
    cuts[ends - 1] = False
    if cuts.any():
        row = rows.row_of_token(int(np.argmax(cuts)))
        raise MisfitError(
            row,
            f"a document has the end-of-sequence token {eos_id} inside, and OLMo-core would cut it there; "
            "it can take only data whose documents have that token at their end alone; choose another --to",
        )
    closed[rows.row_pieces[1:] - 1] = True
    if not closed.all():
        row = rows.row_of_piece(int(np.argmin(closed)))
        raise MisfitError(
            row,
            f"a document does not end with the end-of-sequence token {eos_id}, so OLMo-core would join it to the next "
            "one; choose another --to",
        )


def filled_rows(
    rows: ExchangeRows, capacity: int, dtype: "np.dtype[Any]", filler: int
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Rows of one length: (R * capacity,) the ids, and which of them are trained.

    Raises:
        MisfitError: an id does not fit into the type.
    """
    ids = fitted(rows, dtype)
    tokens = np.full(len(rows) * capacity, filler, dtype)
    mask = np.zeros(len(tokens), np.bool_)
    places = ranges(np.arange(len(rows)) * capacity, np.diff(rows.row_tokens))
    tokens[places] = ids
    mask[places] = rows.trained
    return tokens, mask


def bound_lines(rows: ExchangeRows, capacity: int, before: int) -> bytes:
    """The lines of the `.csv.gz` for some rows.

    Args:
        before: rows of the array before these.
    """
    pieces = np.diff(rows.row_pieces)
    shift = np.repeat((np.arange(len(rows)) + before) * capacity - rows.row_tokens[:-1], pieces)
    ends = rows.ends + shift
    bounds = zip((ends - rows.lengths).tolist(), ends.tolist(), strict=True)
    return "".join(f"{start},{end}\n" for start, end in bounds).encode()
