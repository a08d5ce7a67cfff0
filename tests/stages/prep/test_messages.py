"""Conversations, by eye."""

import json
from typing import Any

import pytest
from packtrain.schemas.errors import RowRejectedError
from packtrain.schemas.rows import Example
from packtrain.stages.prep.messages import MessagesFormat, MessagesOptions

USER = {"role": "user", "content": "Hi"}
ASSISTANT = {"role": "assistant", "content": "Hello"}


def example(row: Any, options: MessagesOptions | None = None) -> Example:
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
    options = MessagesOptions(messages_key="chat log", tools_key="functions")
    made = example({"chat log": [USER], "functions": [{"a": 1}], "messages": 5, "tools": 6}, options)
    assert (made.prompt, made.tools) == ([USER], [{"a": 1}])
    with pytest.raises(RowRejectedError, match="missing_key: the row has no `chat log`"):
        example({"messages": [USER]}, options)


def content(value: Any) -> dict[str, Any]:
    return {"messages": [USER, {"role": "user", "content": value}]}


@pytest.mark.parametrize(
    ("row", "reason", "detail"),
    [
        (
            {"messages": [{"role": "user", "value": "hi"}]},
            "missing_key",
            "`messages[0]` has no `content`; it has `role`, `value`",
        ),
        ({"messages": []}, "empty", "`messages` has no messages"),
        ({"messages": None}, "wrong_type", "`messages`: expected `str | array`, got `null`"),
        (
            {"messages": "Hi"},
            "wrong_type",
            "`messages` is not a JSON list of objects: JSON is malformed: invalid character (byte 0)",
        ),
        ({"messages": " "}, "empty", "`messages` has no messages"),
        ({"messages": ["Hi"]}, "wrong_type", "`messages[0]`: expected `object`, got `str`"),
        ({"messages": [{}]}, "wrong_type", "`messages[0].role` must be a string, got none"),
        ({"messages": [USER, {"role": 1}]}, "wrong_type", "`messages[1].role` must be a string, got int"),
        (
            {"messages": [USER | {"content": [{"type": "text", "text": "a", "train": 1}]}]},
            "wrong_type",
            "`messages[0].content[0].train` must be true or false, got int",
        ),
        (
            {"messages": [USER | {"train": "false"}]},
            "wrong_type",
            "`messages[0].train` must be true or false, got str",
        ),
        (content(5), "wrong_type", "`messages[1].content` must be a string or a list of parts, got int"),
        (
            {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": None}]},
            "missing_key",
            "`messages[1]` `content` is null and nothing replaces it; it has `role`, `content`, `tool_calls`",
        ),
        (
            {"messages": [USER, ASSISTANT | {"weight": -0.5}]},
            "weight",
            "`messages[1].weight` is -0.5: a weight is 0 (not trained), or a number from 1e-06 to 1,000,000",
        ),
        (
            {"messages": [USER, ASSISTANT | {"weight": "1"}]},
            "weight",
            "`messages[1].weight` is '1': a weight is 0 (not trained), or a number from 1e-06 to 1,000,000",
        ),
        (
            content([{"type": "text", "text": "a", "weight": None}, {"type": "text", "text": "b", "weight": 0}]),
            "weight",
            "`messages[1].content[1].weight`: parts have no weight; give it to the message, or say `train`",
        ),
        (
            {"messages": [USER, ASSISTANT | {"weight": 1, "train": False}]},
            "weight",
            "`messages[1]` says train: false and weight: 1; say one",
        ),
        (
            {"messages": [USER, {"role": "assistant", "tool_calls": '[{"name": "f"}]'}]},
            "wrong_type",
            "`messages[1].tool_calls` must be a list of objects",
        ),
        ({"messages": [USER | {"name": 5}]}, "wrong_type", "`messages[0].name` must be a string, got int"),
        (
            {"messages": [USER, {"role": "assistant", "function_call": "f"}]},
            "wrong_type",
            "`messages[1].function_call` must be an object, got str",
        ),
        (
            {"messages": [USER, {"role": "assistant", "function_call": {"name": "f"}, "tool_calls": [{}]}]},
            "wrong_type",
            "`messages[1]` has a `function_call` and `tool_calls`; keep one of them",
        ),
        (
            {"messages": [USER, ASSISTANT], "images": ["a.png"]},
            "not_text",
            "`images` is not empty: only text can be packed; remove the column if the text needs none",
        ),
        (content([5]), "wrong_type", "`messages[1].content[0]` must be an object or a string, got int"),
        (
            content([{"type": "text"}]),
            "wrong_type",
            "`messages[1].content[0].text` must be a string, got none",
        ),
        (
            content(["see", {"type": "image_url", "image_url": {"url": "x"}}]),
            "not_text",
            "`messages[1].content[1]` is of type 'image_url': only text can be packed",
        ),
        (
            content([{"type": "input_audio"}]),
            "not_text",
            "`messages[1].content[0]` is of type 'input_audio': only text can be packed",
        ),
        (
            content([{"type": 3}]),
            "not_text",
            "`messages[1].content[0]` is of type 3: only text can be packed",
        ),
        ({"messages": [USER], "tools": 5}, "wrong_type", "`tools`: expected `str | array | null`, got `int`"),
        ({"messages": [USER], "tools": ["f"]}, "wrong_type", "`tools[0]`: expected `object`, got `str`"),
        (
            {"messages": [USER], "tools": "[?]"},
            "bad_tools",
            "`tools` is not a JSON list of objects: JSON is malformed: invalid character (byte 1)",
        ),
        (
            {"messages": [USER], "tools": "{}"},
            "bad_tools",
            "`tools` is not a JSON list of objects: Expected `array | null`, got `object`",
        ),
    ],
)
def test_bad_rows_are_rejected(row: Any, reason: str, detail: str) -> None:
    with pytest.raises(RowRejectedError) as caught:
        example(row)
    assert (caught.value.reason, caught.value.detail) == (reason, detail)


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
