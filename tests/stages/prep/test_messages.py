"""Conversations, by eye."""

import json
from typing import Any

import pytest
from packtrain.schemas.errors import RowRejectedError
from packtrain.schemas.rows import Example
from packtrain.stages.prep import Options
from packtrain.stages.prep.conversation import MessagesFormat

USER = {"role": "user", "content": "Hi"}
ASSISTANT = {"role": "assistant", "content": "Hello"}


def example(row: Any, options: Options | None = None) -> Example:
    made = MessagesFormat(options)
    (only,) = made.examples(made.decode(json.dumps(row).encode()), 5)
    return only


def test_the_last_turn_of_the_assistant_is_the_completion() -> None:
    assert example({"messages": [USER, ASSISTANT]}) == Example(5, -1, "", [USER], [ASSISTANT], None, None)
    assert example({"messages": [USER, ASSISTANT, USER]})[3:5] == ([USER, ASSISTANT, USER], [])
    assert example({"messages": [ASSISTANT]})[3:5] == ([], [ASSISTANT])


def test_messages_are_carried_losslessly() -> None:
    call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"a": None, "b": 1.5}}}],
        "train": False,
        "weight": 0,
        "score": 10**30,
    }
    parts = {
        "role": "tool",
        "content": ["plain", {"type": "text", "text": "x", "cache": True}],
        "train": None,
    }
    absent = {"role": "assistant", "tool_calls": []}
    messages = [USER, absent, parts, call]
    made = example({"messages": messages})
    assert made.prompt == messages[:3]
    assert made.completion == messages[3:]


def test_tools() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    for given in (tools, json.dumps(tools)):
        assert example({"messages": [USER], "tools": given}).tools == tools
    for none in (None, "", " ", "null"):
        assert example({"messages": [USER], "tools": none}).tools is None
    assert example({"messages": [USER], "tools": []}).tools == []


def test_other_keys() -> None:
    options = Options(keys={"messages": "chat log", "tools": "functions"})
    made = example({"chat log": [USER], "functions": [{"a": 1}], "messages": 5, "tools": 6}, options)
    assert (made.prompt, made.tools) == ([USER], [{"a": 1}])
    with pytest.raises(RowRejectedError, match="missing_key: the row has no `chat log`"):
        example({"messages": [USER]}, options)


def content(value: Any) -> dict[str, Any]:
    return {"messages": [USER, {"role": "user", "content": value}]}


def test_the_nulls_of_arrow_are_dropped() -> None:
    made = MessagesFormat()
    row: dict[str, Any] = {
        "messages": [
            {"role": "user", "content": "Hi", "tool_calls": None},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"name": "f", "args": {"a": None, "b": 1}}],
            },
        ],
        "tools": [{"name": "f", "strict": None}],
    }
    (only,) = made.examples(made.convert(row), 0)
    assert only.prompt == [USER]
    assert only.completion == [{"role": "assistant", "content": None, "tool_calls": [{"name": "f", "args": {"b": 1}}]}]
    assert only.tools == [{"name": "f"}]
    assert row["messages"][0] == {"role": "user", "content": "Hi", "tool_calls": None}


def test_weights_are_told_by_train() -> None:
    messages = [USER | {"weight": None}, ASSISTANT | {"weight": 0}, USER, ASSISTANT | {"weight": 1.0, "train": True}]
    made = example({"messages": messages})
    assert made.prompt == [messages[0], ASSISTANT | {"weight": 0, "train": False}, USER]
    assert made.completion == messages[3:]


def test_the_first_function_calls_become_tool_calls() -> None:
    call = {"name": "f", "arguments": '{"a": 1}'}
    made = example(
        {
            "messages": [
                USER,
                {"role": "assistant", "content": None, "function_call": call},
                {"role": "function", "name": "f", "content": "2"},
                ASSISTANT | {"function_call": None},
            ],
            "functions": [{"name": "f", "parameters": {}}],
        }
    )
    assert made.prompt == [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": call}]},
        {"role": "tool", "name": "f", "content": "2"},
    ]
    assert made.completion == [ASSISTANT | {"function_call": None}]
    assert made.tools == [{"type": "function", "function": {"name": "f", "parameters": {}}}]


def test_every_role_and_the_empty_columns_of_media_are_taken() -> None:
    roles = ["system", "developer", "user", "assistant", "tool", "ipython"]
    messages = [{"role": role, "content": role, "name": "n"} for role in roles]
    assert example({"messages": messages, "images": [], "audio": None}).prompt == messages
