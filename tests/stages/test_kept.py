"""What a template leaves out without a word: joined where that helps, refused by name where it does not."""

from typing import Any

import pytest
from packtrain.schemas.errors import RowRejectedError
from packtrain.stages.kept import LOST, Keeper
from packtrain.stages.template import ChatTemplate

TEXTS_ONLY = (
    "{% for m in messages %}{% if m.role in ['system', 'user', 'assistant'] %}"
    "<{{ m.role }}>{{ m.content if m.content is string else '' }}</>{% endif %}{% endfor %}"
)
PARTS = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endif %}</>{% endfor %}"
)
STRICT = (
    "{% if messages[0].role == 'system' %}{% set messages = messages[1:] %}{% endif %}{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}</>{% endfor %}"
)


def keeper(source: str) -> Keeper:
    return Keeper(ChatTemplate(source, {}, "mules"))


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def test_texts_of_known_roles_pass_as_they_are() -> None:
    messages = [{"role": "system", "content": "s"}, user("u"), {"role": "assistant", "content": None, "tool_calls": []}]
    assert keeper(TEXTS_ONLY)(messages) is messages


def test_parts_are_joined_for_a_template_that_knows_none() -> None:
    messages = [user([{"type": "text", "text": "What is"}, "this?"]), user("u")]
    assert keeper(TEXTS_ONLY)(messages) == [user("What is\nthis?"), user("u")]
    assert messages[0]["content"] == [{"type": "text", "text": "What is"}, "this?"], "the row itself is left alone"


def test_parts_stay_for_a_template_that_knows_them() -> None:
    messages = [user([{"type": "text", "text": "a"}])]
    assert keeper(PARTS)(messages) is messages


def test_parts_that_are_no_text_cannot_be_joined() -> None:
    with pytest.raises(RowRejectedError, match=r"message 3 has a part of type 'thinking'.*'mules'") as caught:
        keeper(TEXTS_ONLY)([user([{"type": "thinking", "thinking": "hm"}])], 2)
    assert caught.value.reason == LOST


@pytest.mark.parametrize("role", ["developer", "robot", "tool"])
def test_a_role_that_the_template_skips_is_refused(role: str) -> None:
    asked = keeper(TEXTS_ONLY)
    with pytest.raises(RowRejectedError, match=f"message 2: the chat template 'mules' writes nothing .* '{role}'"):
        asked([user("u"), {"role": role, "content": "something"}])
    assert asked([user("u"), {"role": role, "content": ""}]), "nothing is lost of a message that says nothing"


def test_a_system_message_that_is_cut_off_is_refused() -> None:
    with pytest.raises(RowRejectedError, match="'system'"):
        keeper(STRICT)([{"role": "system", "content": "s"}, user("u")])


def test_a_template_that_refuses_speaks_for_itself() -> None:
    messages = [user("u"), user("again")]
    assert keeper(STRICT)(messages) is messages
    refusing = keeper("{{ raise_exception('never') }}")
    assert refusing(messages) is messages


CALL = {"type": "function", "id": "1", "function": {"name": "f", "arguments": {}}}


def test_tool_calls_that_the_template_skips_are_refused() -> None:
    asked = keeper(TEXTS_ONLY)
    with pytest.raises(RowRejectedError, match=r"message 2: the chat template 'mules' writes nothing of tool calls"):
        asked([user("u"), {"role": "assistant", "content": None, "tool_calls": [CALL]}])
    assert asked([user("u"), {"role": "assistant", "content": "v", "tool_calls": []}])


def test_tool_calls_that_the_template_writes_pass() -> None:
    calls = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}"
        "{% if m.tool_calls %}{{ CALL }}{% endif %}</>{% endfor %}"
    )
    messages = [user("u"), {"role": "assistant", "content": None, "tool_calls": [CALL]}]
    for how in (
        "m.tool_calls | tojson",
        "m.tool_calls[0].function.name + (m.tool_calls[0].function.arguments.a | string)",
    ):
        assert keeper(calls.replace("CALL", how))(messages) is messages
