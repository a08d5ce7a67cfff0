"""Prompts and completions, by eye."""

import json
from typing import Any

import pytest
from packtrain.schemas.errors import RowRejectedError
from packtrain.schemas.rows import Example
from packtrain.stages.prep import Options
from packtrain.stages.prep.prompt_completion import PromptCompletionFormat

USER = {"role": "user", "content": "Hi"}
ASSISTANT = {"role": "assistant", "content": "Hello"}
ONLY = Options(prompt_only=True)


def example(row: Any, options: Options | None = None) -> Example:
    made = PromptCompletionFormat(options)
    (only,) = made.examples(made.decode(json.dumps(row).encode()), 2)
    return only


def test_texts_are_carried_as_they_are() -> None:
    row = {"prompt": " 2 + 2 =", "completion": " 4\n"}
    assert example(row) == Example(2, -1, "", " 2 + 2 =", " 4\n", None, None)
    assert example({"prompt": "", "completion": "x"})[3:5] == ("", "x")


def test_messages_are_carried_as_they_are() -> None:
    row = {"prompt": [USER], "completion": [ASSISTANT, USER, ASSISTANT], "tools": [{"name": "f"}]}
    made = example(row)
    assert (made.prompt, made.completion, made.tools) == (row["prompt"], row["completion"], row["tools"])


def test_prompt_only_does_not_look_at_the_completion() -> None:
    assert example({"prompt": "a"}, ONLY)[3:5] == ("a", "")
    assert example({"prompt": [USER], "completion": 5}, ONLY)[3:5] == ([USER], [])
    assert PromptCompletionFormat(ONLY).form == "prompt"
    assert PromptCompletionFormat().form == "prompt_completion"
    rows: list[dict[str, Any]] = [{"prompt": ""}, {"prompt": []}]
    for row in rows:
        with pytest.raises(RowRejectedError, match="empty: `prompt` is empty"):
            example(row, ONLY)


def test_the_nulls_of_arrow_are_dropped() -> None:
    made = PromptCompletionFormat()
    row = {"prompt": [USER | {"name": None}], "completion": [ASSISTANT | {"name": None}], "tools": None}
    (only,) = made.examples(made.convert(row), 0)
    assert (only.prompt, only.completion) == ([USER], [ASSISTANT])
