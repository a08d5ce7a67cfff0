"""Rows that were tokenized already, by eye."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from packtrain.schemas.rows import Example
from packtrain.stages.prep import Options, public_row
from packtrain.stages.prep.tokenized import MASKS, TokenizedFormat


def example(row: Any, options: Options | None = None) -> Example:
    made = TokenizedFormat(options)
    (only,) = made.examples(made.decode(json.dumps(row).encode()), 7)
    return only


@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.booleans()), min_size=1), st.sampled_from(["labels", *MASKS]))
def test_labels_and_masks_say_the_same(tokens: list[tuple[int, bool]], column: str) -> None:
    ids = [token for token, _ in tokens]
    labels = [token if trained else -100 for token, trained in tokens]
    said = labels if column == "labels" else [int(trained) for _, trained in tokens]
    made = example({"input_ids": ids, column: said})
    assert public_row(made, "tokenized") == {"input_ids": ids, "labels": labels}
