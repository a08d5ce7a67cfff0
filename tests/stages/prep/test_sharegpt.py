"""ShareGPT's conversations, by eye."""

import json
from typing import Any

import pytest
from packtrain.schemas.rows import Example
from packtrain.stages.prep import Options
from packtrain.stages.prep.sharegpt import ROLES, ShareGPTFormat

HUMAN = {"from": "human", "value": "Hi"}
GPT = {"from": "gpt", "value": "Hello"}
USER = {"role": "user", "content": "Hi"}
ASSISTANT = {"role": "assistant", "content": "Hello"}


def example(row: Any, options: Options | None = None) -> Example:
    made = ShareGPTFormat(options)
    (only,) = made.examples(made.decode(json.dumps(row).encode()), 5)
    return only


def test_from_and_value_become_role_and_content() -> None:
    assert example({"conversations": [HUMAN, GPT]}) == Example(5, -1, "", [USER], [ASSISTANT], None)
    assert example({"conversations": [HUMAN, GPT, HUMAN]})[3:5] == ([USER, ASSISTANT, USER], [])


@pytest.mark.parametrize(("name", "role"), [*ROLES.items(), (" Human ", "user"), ("GPT", "assistant")])
def test_every_name_of_a_role(name: str, role: str) -> None:
    value = '{"name": "f", "arguments": {}}'
    made = example({"conversations": [{"from": name, "value": value}, HUMAN]})
    assert made.prompt is not None
    assert made.prompt[0]["role"] == role  # type: ignore[index]


def test_other_keys_of_a_turn_stay() -> None:
    turns = [{"from": "human", "value": "Hi", "id": [1, None]}, {"from": "gpt", "value": "Hello", "weight": 0}]
    made = example({"conversations": turns})
    assert made.prompt == [USER | {"id": [1, None]}]
    assert made.completion == [ASSISTANT | {"weight": 0, "train": False}]
    assert example({"conversations": [USER, ASSISTANT]})[3:5] == ([USER], [ASSISTANT])


def test_calls_and_what_they_gave() -> None:
    calls: list[Any] = [{"name": "f", "arguments": {"a": None}}, {"name": "g", "arguments": "{}"}]
    turns = [
        HUMAN,
        {"from": "function_call", "value": json.dumps(calls[0])},
        {"from": "observation", "value": "3"},
        {"from": "function_call", "value": json.dumps(calls)},
    ]
    made = example({"conversations": turns, "tools": '[{"name": "f"}]'})
    wrapped = [{"type": "function", "function": call} for call in calls]
    assert made.prompt == [
        USER,
        {"role": "assistant", "content": "", "tool_calls": wrapped[:1]},
        {"role": "tool", "content": "3"},
    ]
    assert made.completion == [{"role": "assistant", "content": "", "tool_calls": wrapped}]
    assert made.tools == [{"name": "f"}]


def test_the_column_of_the_system_text() -> None:
    system = {"role": "system", "content": "S"}
    assert example({"system": "S", "conversations": [HUMAN]}).prompt == [system, USER]
    assert example({"system": "S", "conversations": [{"from": "system", "value": "S"}, HUMAN]}).prompt == [system, USER]
    for none in ("", None):
        assert example({"system": none, "conversations": [HUMAN]}).prompt == [USER]


def test_other_keys() -> None:
    options = Options(keys={"conversations": "dialog", "system": "sys", "tools": "fs"})
    made = example({"dialog": [HUMAN], "sys": "S", "fs": [{"a": 1}], "system": 5}, options)
    assert (made.prompt, made.tools) == ([{"role": "system", "content": "S"}, USER], [{"a": 1}])


def test_the_nulls_of_arrow_are_dropped() -> None:
    made = ShareGPTFormat()
    turns = [HUMAN | {"weight": None}, GPT | {"weight": 1}]
    (only,) = made.examples(made.convert({"conversations": turns, "tools": None}), 0)
    assert (only.prompt, only.completion) == ([USER], [ASSISTANT | {"weight": 1}])
