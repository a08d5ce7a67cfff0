"""An answer that says nothing is rejected, whatever the format."""

from typing import Any

import pytest
from packtrain.stages.prep import Options, make_format

USER = {"role": "user", "content": "Why?"}
CALL = {"type": "function", "function": {"name": "f", "arguments": {}}}
SILENT: list[Any] = [
    {"role": "assistant", "content": ""},
    {"role": "assistant", "content": []},
    {"role": "assistant", "content": [{"type": "text", "text": ""}, ""]},
    {"role": "assistant", "content": "", "tool_calls": []},
    {"role": "assistant", "content": None, "reasoning_content": ""},
    {"role": "assistant", "content": " \n\u00a0"},
    {"role": "assistant", "content": [{"type": "text", "text": " "}, "\t"]},
    {"role": "assistant", "content": " ", "reasoning_content": "\n"},
]
SPEAKING: list[Any] = [
    {"role": "assistant", "content": " a"},
    {"role": "assistant", "content": [{"type": "text", "text": "a"}]},
    {"role": "assistant", "content": "\n", "tool_calls": [CALL]},
    {"role": "assistant", "content": " ", "reasoning_content": "hm"},
    {"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": "{}"}},
]


def rows(answer: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Every format in which this message can be the last answer."""
    return [
        ("messages", {"messages": [USER, answer]}),
        ("messages", {"messages": [answer]}),
        ("sharegpt", {"conversations": [USER, answer]}),
        ("prompt_completion", {"prompt": [USER], "completion": [answer]}),
        ("prompt_completion", {"prompt": [USER], "completion": [SPEAKING[0], USER, answer]}),
        ("preference", {"prompt": [USER], "chosen": [answer], "rejected": [{"role": "assistant", "content": "no"}]}),
        ("preference", {"prompt": [USER], "chosen": [{"role": "assistant", "content": "no"}], "rejected": [answer]}),
    ]


def reasons(name: str, row: dict[str, Any]) -> list[str]:
    return [reason for _, reason, _ in make_format(name).prepare_rows([(0, row)]).rejects]


@pytest.mark.parametrize("answer", SILENT)
def test_an_answer_that_says_nothing_is_rejected(answer: dict[str, Any]) -> None:
    for name, row in rows(answer):
        assert reasons(name, row) == ["empty_completion"], (name, row)


@pytest.mark.parametrize("answer", SPEAKING)
def test_any_other_is_taken(answer: dict[str, Any]) -> None:
    for name, row in rows(answer):
        assert reasons(name, row) == [], (name, row)


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("alpaca", {"instruction": "Why?", "output": ""}),
        ("prompt_completion", {"prompt": "Why?", "completion": ""}),
        ("prompt_completion", {"prompt": [USER], "completion": []}),
        ("preference", {"prompt": "Why?", "chosen": "", "rejected": "no"}),
        ("sharegpt", {"conversations": [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": ""}]}),
    ],
)
def test_so_are_texts(name: str, row: dict[str, Any]) -> None:
    assert reasons(name, row) == ["empty_completion"]


def test_an_empty_answer_within_a_conversation_stays_but_is_no_example_of_its_own() -> None:
    row = {"messages": [USER, SILENT[0], USER, SPEAKING[1]]}
    (made,) = make_format("messages").prepare_rows([(0, row)]).examples
    assert made.prompt == row["messages"][:3]
    each = make_format("messages", Options(per_turn=True)).prepare_rows([(0, row)])
    assert [one.completion for one in each.examples] == [row["messages"][3:]]
    assert each.skipped == {"empty_completion": 1}
