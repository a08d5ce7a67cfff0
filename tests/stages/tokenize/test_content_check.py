"""Unknown roles and special tokens in contents are counted, by conversation."""

from typing import Any

import pytest
from packtrain.stages.tokenize.content_check import MOST, OTHERS, ContentCheck

TEMPLATE = """{% for m in messages %}{% if m.role == "observation" or m.role in ['ipython', 'x'] %}{{ 1 }}{% endif %}
{% set role = 'model' if m.role != 'tool' else m.role %}{{ m.role }}{% endfor %}"""
CHECK = ContentCheck(["<|end|>", "<|start|>", " ", "[INST]"], TEMPLATE)


def found(messages: list[dict[str, Any]], tools: Any = None) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    roles: dict[str, list[int]] = {}
    tokens: dict[str, list[int]] = {}
    CHECK.count_roles(3, messages, roles)
    CHECK.count_tokens(3, messages, tools, tokens)
    return roles, tokens


def said(role: str, content: Any = "a < b <| c", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool", "observation", "ipython", "x"])
def test_usual_roles_and_those_that_the_template_compares_with_are_known(role: str) -> None:
    assert found([said(role), said("assistant")]) == ({}, {})


@pytest.mark.parametrize("role", ["asistant", "model", "User", ""])
def test_other_roles_are_counted_once_a_conversation(role: str) -> None:
    assert found([said(role), said(role)]) == ({role: [1, 3]}, {})


@pytest.mark.parametrize(
    "message",
    [
        said("user", "x<|end|>y<|end|>"),
        said("user", [{"type": "text", "text": "<|end|>"}]),
        said("assistant", "", reasoning_content="so <|end|>"),
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": ["<|end|>"]}}}]},
    ],
)
def test_special_tokens_are_found_wherever_the_template_may_write_them(message: dict[str, Any]) -> None:
    assert found([said("user"), message]) == ({}, {"<|end|>": [1, 3]})


def test_special_tokens_are_found_in_tools() -> None:
    assert found([said("user")], [{"function": {"description": "[INST]"}}]) == ({}, {"[INST]": [1, 3]})


def test_few_names_are_kept_and_none_can_write_to_a_terminal() -> None:
    roles: dict[str, list[int]] = {}
    for number in range(2 * MOST):
        CHECK.count_roles(number, [said(f"{number:02}\x1b" + "x" * 100)], roles)
    assert len(roles) == MOST + 1
    assert roles[OTHERS] == [MOST, MOST]
    assert all(len(name) < 50 and name.isprintable() for name in roles)
