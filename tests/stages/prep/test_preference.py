"""Preference data, by eye."""

import json
from typing import Any

from packtrain.schemas.rows import Example
from packtrain.stages.prep import Options
from packtrain.stages.prep.preference import PreferenceFormat

USER = {"role": "user", "content": "Hi"}
GOOD = {"role": "assistant", "content": "Hello"}
BAD = {"role": "assistant", "content": "Go"}


def example(row: Any, options: Options | None = None) -> Example:
    made = PreferenceFormat(options)
    (only,) = made.examples(made.decode(json.dumps(row).encode()), 4)
    return only


def sides(row: Any, options: Options | None = None) -> tuple[Any, Any, Any]:
    made = example(row, options)
    return made.prompt, made.completion, made.rejected


def test_what_is_given_is_carried() -> None:
    row: dict[str, Any] = {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD], "tools": [{"name": "f"}]}
    assert example(row) == Example(4, -1, "", [USER], [GOOD], None, [{"name": "f"}], rejected=[BAD])
    assert sides({"prompt": "a", "chosen": " b", "rejected": " c"}) == ("a", " b", " c")


def test_texts_as_turns() -> None:
    chat = Options(style="chat")
    assert sides({"prompt": "Hi", "chosen": "Hello", "rejected": "Go"}, chat) == ([USER], [GOOD], [BAD])
    assert sides({"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]}, chat) == ([USER], [GOOD], [BAD])


def test_a_prompt_within_the_answers() -> None:
    row: dict[str, Any] = {"chosen": [USER, GOOD], "rejected": [USER, BAD]}
    wanted = ([USER], [GOOD], [BAD])
    for prompt in ({}, {"prompt": None}, {"prompt": "Hi"}, {"prompt": [USER]}):
        assert sides(row | prompt) == wanted
    assert sides({"chosen": [USER, GOOD], "rejected": [USER, GOOD, USER]}) == ([USER], [GOOD], [GOOD, USER])
    assert sides({"chosen": "Q: a A: b", "rejected": "Q: a A: c"}) == ("Q: a A:", " b", " c")


def test_a_prompt_that_is_a_text_beside_answers_that_are_turns() -> None:
    row = {"prompt": "Hi", "chosen": [GOOD], "rejected": [BAD]}
    assert sides(row) == ([USER], [GOOD], [BAD])
    lone: dict[str, Any] = {
        "conversations": [{"from": "human", "value": "Hi"}],
        "chosen": {"from": "gpt", "value": "Hello"},
        "rejected": {"from": "gpt", "value": "Go"},
    }
    assert sides(lone, Options(keys={"prompt": "conversations"})) == ([USER], [GOOD], [BAD])


def test_other_keys() -> None:
    options = Options(keys={"prompt": "question", "chosen": "better", "rejected": "worse"})
    assert sides({"question": "a", "better": "b", "worse": "c", "prompt": 1}, options) == ("a", "b", "c")
