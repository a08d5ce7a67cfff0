"""Packed rows as plain arrays."""

import numpy as np
import pytest
from packtrain.stages.exchange.exchange_rows import ExchangeRows, MisfitError, fitted


def test_the_arrays_of_a_slice(rows: ExchangeRows) -> None:
    assert len(rows) == 3
    assert rows.ids.tolist() == [11, 12, 13, 9, 21, 22, 9, 31, 9, 41, 9, 51, 52, 53]
    assert np.flatnonzero(rows.trained).tolist() == [2, 3, 5, 8, 12, 13]
    assert rows.lengths.tolist() == [4, 3, 2, 2, 3]
    assert rows.row_pieces.tolist() == [0, 2, 3, 5]
    assert rows.row_tokens.tolist() == [0, 7, 9, 14]
    assert [rows.row_of_token(token) for token in (0, 6, 7, 8, 9, 13)] == [0, 0, 1, 1, 2, 2]
    assert [rows.row_of_piece(piece) for piece in range(5)] == [0, 0, 1, 2, 2]


def test_an_id_that_does_not_fit_is_named_with_its_row(rows: ExchangeRows) -> None:
    assert fitted(rows, np.dtype(np.uint16)).tolist() == rows.ids.tolist()
    ids = rows.ids.copy()
    ids[10] = 65_536
    wide = ExchangeRows(ids, rows.labels, rows.lengths, rows.row_pieces, rows.row_tokens)
    assert fitted(wide, np.dtype(np.uint32)).tolist() == ids.tolist()
    with pytest.raises(MisfitError, match="token id 65,536 does not fit into uint16, which holds at most 65,535") as at:
        fitted(wide, np.dtype(np.uint16))
    assert at.value.row == 2
