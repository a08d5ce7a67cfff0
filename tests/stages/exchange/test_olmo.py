"""OLMo-core's arrays, literally."""

import numpy as np
import pytest
from packtrain.stages.exchange.exchange_rows import ExchangeRows, MisfitError
from packtrain.stages.exchange.olmo import bound_lines, check_bounds, filled_rows, filler_of


def test_rows_of_one_length(rows: ExchangeRows) -> None:
    tokens, mask = filled_rows(rows, 8, np.dtype(np.uint16), filler=7)
    assert tokens.dtype == np.uint16
    assert tokens.reshape(3, 8).tolist() == [
        [11, 12, 13, 9, 21, 22, 9, 7],
        [31, 9, 7, 7, 7, 7, 7, 7],
        [41, 9, 51, 52, 53, 7, 7, 7],
    ]
    assert np.flatnonzero(mask).tolist() == [2, 3, 5, 9, 19, 20]
    assert bound_lines(rows, 8, before=2) == b"16,20\n20,23\n24,26\n32,34\n34,37\n"


def changed(rows: ExchangeRows, token: int, value: int) -> ExchangeRows:
    ids = rows.ids.copy()
    ids[token] = value
    return ExchangeRows(ids, rows.labels, rows.lengths, rows.row_pieces, rows.row_tokens)


def test_documents_end_where_the_reader_cuts(rows: ExchangeRows) -> None:
    check_bounds(rows, 9)  # the last document of the last row is open, and only padding follows it
    with pytest.raises(MisfitError, match="has the end-of-sequence token 9 inside") as at:
        check_bounds(changed(rows, 11, 9), 9)
    assert at.value.row == 2
    with pytest.raises(MisfitError, match="does not end with the end-of-sequence token 9") as at:
        check_bounds(changed(rows, 3, 8), 9)
    assert at.value.row == 0


def test_rows_are_never_filled_with_the_token_that_ends_a_document() -> None:
    assert [filler_of(9, 7), filler_of(9, 9), filler_of(0, 0)] == [7, 0, 1]
