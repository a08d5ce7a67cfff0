"""The multiples that parallel layouts ask of documents and rows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.schemas.alignment import Parallel
from packtrain.schemas.rows import PACKED, PREFERENCE, packed_schema, schema_of


@pytest.mark.parametrize(
    ("parallel", "document", "row"),
    [
        (Parallel(1), 1, 1),
        (Parallel(2), 4, 4),
        (Parallel(3), 6, 6),
        (Parallel(2, 2), 4, 4),
        (Parallel(2, 3), 12, 12),
        (Parallel(2, 8), 16, 16),
        (Parallel(1, 4), 4, 4),
        (Parallel(2, 1, "ring"), 1, 2),
        (Parallel(3, 2, "ulysses"), 1, 6),
    ],
)
def test_known_multiples(parallel: Parallel, document: int, row: int) -> None:
    assert (parallel.document_multiple, parallel.row_multiple) == (document, row)


@given(st.builds(Parallel, st.integers(1, 64), st.integers(1, 16), st.sampled_from(["thd", "ring", "ulysses"])))
def test_every_rank_gets_equal_parts(parallel: Parallel) -> None:
    assert parallel.row_multiple % (parallel.cp * parallel.tp) == 0
    assert parallel.row_multiple % parallel.document_multiple == 0
    if parallel.layout == "thd" and parallel.cp > 1:
        assert parallel.document_multiple % (2 * parallel.cp) == 0


def test_a_schema_is_known_by_its_columns() -> None:
    assert packed_schema() == PACKED
    for unpadded in (False, True):
        for weights in (False, True):
            schema = packed_schema(unpadded=unpadded, weights=weights)
            assert schema_of(schema.names) == schema
            assert schema.names[:6] == PACKED.names
    assert packed_schema(unpadded=True, weights=True).names[6:] == ["seq_lengths_unpadded", "loss_weights"]
    assert schema_of(PREFERENCE.names) == PREFERENCE
