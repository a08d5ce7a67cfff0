"""What `rejects.jsonl` and the end of a run advise for a row that cannot be used fits what is wrong with it."""

import json
from pathlib import Path
from typing import Any

import pytest
from packtrain.schemas.tables.reasons import REASONS

from tests import kit

USUAL_ROLES = """{% set usual = ['system', 'user', 'assistant', 'tool'] %}
{%- for m in messages %}{% if m.role in usual %}<|im_start|>{{ m.role }}
{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""A template that skips other roles."""


def rejects_of(folder: Path, *lines: str, **source: Any) -> list[dict[str, Any]]:
    """Pack good chats and some other lines; the rejects."""
    good = [json.dumps(row) for row in kit.corpus("chats", 5)]
    (folder / "mine.jsonl").write_text("\n".join([*good, *lines, ""]))
    tokenizer = {"path": str(kit.demo_tokenizer()), "chat_template": USUAL_ROLES}
    mine = kit.source("chats", path="mine.jsonl") | source
    config = kit.configure(folder, mine, mask="assistant", tokenizer=tokenizer)
    return kit.packed(config).rejects()


def chat(*turns: tuple[str, str]) -> str:
    return json.dumps({"messages": [{"role": role, "content": content} for role, content in turns]})


@pytest.mark.parametrize("role", ["tool_call", "function_call", "tool_response", "observation", "Tool_Call"])
def test_roles_of_calls_and_results_are_read_by_the_format_that_is_advised(role: str, tmp_path: Path) -> None:
    call = ("tool_call", '{"name": "f", "arguments": {}}')
    result = ("tool", "3") if role.lower().endswith("call") else (role, "3")
    turns = (("user", "q"), (role, call[1]) if result[0] == "tool" else ("assistant", "I look."), result)
    line = chat(*turns, ("assistant", "a"))
    (reject,) = rejects_of(tmp_path, line)
    assert reject["reason"] == "call_role"
    for words in (reject["remedy"], reject["detail"]):
        assert "format: sharegpt" in words
        assert "{conversations: messages}" in words
    assert "rename" not in reject["remedy"]
    (tmp_path / "again").mkdir()
    assert not rejects_of(tmp_path / "again", line, format="sharegpt", keys={"conversations": "messages"})


@pytest.mark.parametrize(
    ("role", "near"), [("asistant", "assistant"), ("bot", "assistant"), ("humman", "human"), ("xyzzy", None)]
)
def test_a_role_that_is_misspelt_is_renamed(role: str, near: str | None, tmp_path: Path) -> None:
    (reject,) = rejects_of(tmp_path, chat(("user", "q"), (role, "x"), ("assistant", "a")))
    assert reject["reason"] == "unknown_role"
    assert "rename it" in reject["remedy"]
    assert "sharegpt" not in reject["remedy"] + reject["detail"]
    assert (f"perhaps to '{near}'" in reject["detail"]) == (near == "assistant")


def test_half_of_a_surrogate_pair_is_not_called_a_line_that_is_not_json(tmp_path: Path) -> None:
    half, broken = rejects_of(tmp_path, chat(("user", "q"), ("assistant", "\ud83d")), '{"messages": [')
    assert (half["reason"], broken["reason"]) == ("half_surrogate", "invalid_json")
    assert "JSON" not in half["remedy"]
    assert "surrogate" not in broken["remedy"]


def test_every_reject_has_the_remedy_of_its_reason(tmp_path: Path) -> None:
    lines = ("[]", "{", '{"messages": []}', chat(("user", "q"), ("assistant", "")), '{"other": 1}')
    rejects = rejects_of(tmp_path, *lines)
    assert len({reject["reason"] for reject in rejects}) == len(lines)
    assert all(reject["remedy"] == REASONS[reject["reason"]] for reject in rejects)
