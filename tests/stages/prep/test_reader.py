"""A person's own reader: what it may give, and what is said of what it may not."""

import json
from collections import Counter
from typing import Any

import pytest
from packtrain.schemas.errors import RowFilteredError
from packtrain.schemas.rows import Example
from packtrain.stages.prep import Options, ReaderCode
from packtrain.stages.prep.reader import ReaderFormat

USER = {"role": "user", "content": "Hi"}
ASSISTANT = {"role": "assistant", "content": "Hello"}
AS_IT_IS = "def read(row):\n    return row['give']\n"


def reader(code: str = AS_IT_IS, **more: Any) -> ReaderFormat:
    return ReaderFormat(Options(reader=ReaderCode(function="read", code=code, path="/home/me/readers.py"), **more))


def examples(give: Any, code: str = AS_IT_IS, **more: Any) -> list[Example]:
    made = reader(code, **more)
    return made.examples(made.decode(json.dumps({"give": give}).encode()), 2, Counter())


@pytest.mark.parametrize(
    ("give", "public"),
    [
        ({"text": "a"}, {"text": "a"}),
        ({"prompt": [USER], "completion": [ASSISTANT]}, {"prompt": [USER], "completion": [ASSISTANT]}),
        ({"messages": [USER], "tools": [{"name": "f"}]}, {"messages": [USER], "tools": [{"name": "f"}]}),
        ({"conversations": [{"from": "gpt", "value": "a"}], "system": "S"}, None),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, {"prompt": "a", "chosen": "b", "rejected": "c"}),
        ({"input_ids": [1, 2], "loss_mask": [0, 1]}, {"input_ids": [1, 2], "labels": [-100, 2]}),
    ],
)
def test_every_form(give: Any, public: Any) -> None:
    (only,) = examples(give)
    assert (only.line, only.sub, only.group) == (2, -1, "")
    if public is not None:
        assert reader().public_row(only) == public


def test_several_rows_of_one() -> None:
    first, second = examples([{"text": "a", "group": "g"}, {"prompt": "b", "completion": "c"}])
    assert (first.sub, first.group, first.text) == (0, "g", "a")
    assert (second.sub, second.group, second.prompt) == (1, "", "b")
    turns = examples([{"text": "a"}, {"messages": [USER, ASSISTANT, USER, ASSISTANT], "group": "g"}], per_turn=True)
    assert [(one.sub, one.group) for one in turns] == [(0, ""), (1, "g"), (2, "g")]


def test_nothing_filters_the_row() -> None:
    for nothing in ("None", "[]"):
        with pytest.raises(RowFilteredError, match="not_wanted"):
            examples(None, f"def read(row):\n    return {nothing}\n")
