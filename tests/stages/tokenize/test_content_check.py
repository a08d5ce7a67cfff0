"""Unknown roles and special tokens in contents are counted, by conversation."""

from typing import Any

import pytest
from packtrain.stages.tokenize.content_check import MOST, OTHERS, ROLES, TOKENS, ContentCheck
from packtrain.stages.tokenize.encode_counts import EncodeCounts

TEMPLATE = """{% for m in messages %}{% if m.role == "observation" or m.role in ['ipython', 'x'] %}{{ 1 }}{% endif %}
{% set role = 'model' if m.role != 'tool' else m.role %}{{ m.role }}{% endfor %}"""
CHECK = ContentCheck(["<|end|>", "<|start|>", " ", "[INST]"], TEMPLATE)


def found(messages: list[dict[str, Any]], tools: Any = None) -> tuple[dict[str, int], dict[str, int]]:
    counts = EncodeCounts()
    for line in (3, 4):
        CHECK.count_roles(line, messages, counts)
        CHECK.count_tokens(line, messages, tools, counts)
    assert all(place.line == 3 for place in counts.places), "the first"
    return counts.found.get(ROLES, {}), counts.found.get(TOKENS, {})


def said(role: str, content: Any = "a < b <| c", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


@pytest.mark.parametrize(
    ("role", "known"),
    [("developer", True), ("observation", True), ("x", True), ("model", False), ("User", False)],
)
def test_roles_that_the_template_compares_with_are_known(role: str, known: bool) -> None:
    assert found([said(role), said(role)]) == ({} if known else {role: 2}, {})


@pytest.mark.parametrize(
    "message",
    [
        said("user", [{"type": "text", "text": "x<|end|>y<|end|>"}]),
        said("assistant", "", reasoning_content="so <|end|>"),
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": ["<|end|>"]}}}]},
    ],
)
def test_special_tokens_are_found_wherever_the_template_may_write_them(message: dict[str, Any]) -> None:
    assert found([said("user"), message]) == ({}, {"<|end|>": 2})
    assert found([said("user")], [{"function": {"description": "[INST]"}}]) == ({}, {"[INST]": 2})


def test_few_names_are_kept_and_none_can_write_to_a_terminal() -> None:
    counts = EncodeCounts()
    for number in range(2 * MOST):
        CHECK.count_roles(number, [said(f"{number:02}\x1b" + "x" * 100)], counts)
    roles = counts.found[ROLES]
    assert len(roles) == MOST + 1
    assert roles[OTHERS] == MOST
    assert all(len(name) < 50 and name.isprintable() for name in roles)
