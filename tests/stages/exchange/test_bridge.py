"""Megatron-Bridge's rows, literally."""

import pytest
from packtrain.stages.exchange.bridge import bridge_rows, packing_metadata
from packtrain.stages.exchange.exchange_rows import ExchangeRows, MisfitError


def test_rows_are_as_they_were_and_the_mask_is_moved_to_the_place_that_predicts(rows: ExchangeRows) -> None:
    made = bridge_rows(rows, multiple=1, pad_id=0, max_length=8)
    assert made.batch.to_pydict() == {
        "input_ids": [[11, 12, 13, 9, 21, 22, 9], [31, 9], [41, 9, 51, 52, 53]],
        "loss_mask": [[0, 1, 1, 0, 1, 0, 0], [1, 0], [0, 0, 1, 1, 0]],
        "seq_start_id": [[0, 4], [0], [0, 2]],
    }
    assert (made.padding, made.longest, made.shortest_row, made.most_documents) == (0, 4, 2, 2)


def test_every_document_is_one_longer_than_a_multiple(rows: ExchangeRows) -> None:
    made = bridge_rows(rows, multiple=4, pad_id=7, max_length=8)
    assert made.batch.to_pydict() == {
        "input_ids": [[11, 12, 13, 9, 7, 21, 22, 9, 7, 7], [31, 9, 7, 7, 7], [41, 9, 7, 7, 7, 51, 52, 53, 7, 7]],
        "loss_mask": [[0, 1, 1, 0, 0, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1, 1, 0, 0, 0]],
        "seq_start_id": [[0, 5], [0], [0, 5]],
    }
    assert (made.padding, made.longest, made.shortest_row, made.most_documents) == (11, 5, 5, 2)


def test_a_row_that_padding_makes_too_long(rows: ExchangeRows) -> None:
    with pytest.raises(MisfitError, match=r"it would have 8 tokens, more than max_length \(7\); pack with") as at:
        bridge_rows(rows, multiple=4, pad_id=7, max_length=7)
    assert at.value.row == 0


def test_the_facts_for_cuda_graphs() -> None:
    assert packing_metadata(3, 5, 14, 4, 2, 2, 8) == {
        "dataset_max_seqlen": 4,
        "max_samples_per_bin": 2,
        "packing_factor": 1.67,
        "packing_efficiency": 58.33,
        "pack_size": 8,
        "min_packed_seqlen": 2,
    }
