"""Rows that were tokenized already, by eye."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.schemas.errors import RowRejectedError
from packtrain.schemas.rows import Example
from packtrain.stages.prep import Options, public_row
from packtrain.stages.prep.tokenized import MASKS, TokenizedFormat


def example(row: Any, options: Options | None = None) -> Example:
    made = TokenizedFormat(options)
    (only,) = made.examples(made.decode(json.dumps(row).encode()), 7)
    return only


IDS = {"input_ids": [5, 6, 7]}


@pytest.mark.parametrize(
    ("row", "trained"),
    [
        ({}, None),
        ({"labels": [5, 6, 7]}, None),
        ({"labels": [-100, -100, 7]}, [False, False, True]),
        ({"labels": [-100, -100, -100]}, [False, False, False]),
        ({"loss_mask": [0, 1, 1]}, [False, True, True]),
        ({"completion_mask": [False, True, True]}, [False, True, True]),
        ({"assistant_masks": [1, 1, 1]}, None),
        ({"assistant_masks": [0, 1, 1], "completion_mask": [1, 1, 0]}, [False, True, False]),
        ({"labels": [-100, 6, 7], "loss_mask": [1, 1, 0]}, [False, True, False]),
        ({"labels": [5, 6, 7], "seq_start_id": [0]}, None),
        ({"labels": None, "loss_mask": None, "attention_mask": [1, 1, 1], "seq_lengths": [3]}, None),
    ],
)
def test_what_is_trained(row: dict[str, Any], trained: list[bool] | None) -> None:
    assert example(IDS | row) == Example(7, -1, "", None, None, None, ids=[5, 6, 7], trained=trained)


def test_a_packed_row_is_taken_apart() -> None:
    made = TokenizedFormat(Options(keys={"lengths": "seq_lengths"}))
    row = {"input_ids": [5, 6, 7, 8, 9, 4], "labels": [-100, 6, 7, 8, -100, 4], "seq_lengths": [2, 1, 3]}
    assert made.examples(made.decode(json.dumps(row).encode()), 7) == [
        Example(7, 0, "", None, None, None, ids=[5, 6], trained=[False, True]),
        Example(7, 1, "", None, None, None, ids=[7], trained=None),
        Example(7, 2, "", None, None, None, ids=[8, 9, 4], trained=[True, False, True]),
    ]
    for lengths, detail in (
        ([2, 1], "`seq_lengths` adds up to 3, and `input_ids` has 6"),
        ([7, -1], "`seq_lengths[1]` is -1: a document has at least one token"),
        ([], "`seq_lengths` adds up to 0, and `input_ids` has 6"),
    ):
        with pytest.raises(RowRejectedError) as caught:
            made.examples(made.decode(json.dumps(row | {"seq_lengths": lengths}).encode()), 7)
        assert (caught.value.reason, caught.value.detail) == ("bad_lengths", detail)
    with pytest.raises(RowRejectedError, match="the row has no `seq_lengths`"):
        made.decode(b'{"input_ids": [5]}')


def test_padding_and_weights_of_packed_rows() -> None:
    made = TokenizedFormat(Options(keys={"lengths": "seq_lengths"}))
    row = {"input_ids": [5, 6, 0, 8, 0, 0], "labels": [-100, 6, -100, -100, -100, -100], "seq_lengths": [3, 2, 1]}

    def examples(**more: Any) -> list[Example]:
        return made.examples(made.decode(json.dumps(row | more).encode()), 7)

    assert examples(seq_lengths_unpadded=[2, 1, 0], loss_weights=[0, 1, 0, 0.0, 0, 0]) == [
        Example(7, 0, "", None, None, None, ids=[5, 6], trained=[False, True]),
        Example(7, 1, "", None, None, None, ids=[8], trained=[False]),
    ]
    for lengths in ([2, 1], [2, 3, 0], [2, -1, 0], [0, 0, 0]):
        with pytest.raises(RowRejectedError, match="`seq_lengths_unpadded` does not fit `seq_lengths`"):
            examples(seq_lengths_unpadded=lengths)
    with pytest.raises(RowRejectedError, match=r"`loss_weights\[1\]` is 0.5: a row may have a weight") as caught:
        examples(loss_weights=[0, 0.5, 0, 0, 0, 0])
    assert caught.value.reason == "weight"


def test_other_keys() -> None:
    options = Options(keys={"ids": "tokens", "labels": "targets", "mask": "m"})
    made = example({"tokens": [5, 6], "targets": [5, 6], "m": [0, 1], "loss_mask": 5, "labels": 5}, options)
    assert made.trained == [False, True]
    with pytest.raises(RowRejectedError, match="the row has no `m`"):
        example({"tokens": [5]}, options)
    assert example({"input_ids": [5, 6], "loss_mask": [-100, 6]}, Options(keys={"labels": "loss_mask"})).trained == [
        False,
        True,
    ]


@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.booleans()), min_size=1), st.sampled_from(["labels", *MASKS]))
def test_labels_and_masks_say_the_same(tokens: list[tuple[int, bool]], column: str) -> None:
    ids = [token for token, _ in tokens]
    labels = [token if trained else -100 for token, trained in tokens]
    said = labels if column == "labels" else [int(trained) for _, trained in tokens]
    made = example({"input_ids": ids, column: said})
    assert public_row(made, "tokenized") == {"input_ids": ids, "labels": labels}
