"""Content of a row that its text lacks: rejected with its name, or counted if it may be left out."""

from typing import Any

import pytest
from packtrain.schemas.errors import RowRejectedError
from packtrain.schemas.rows import Messages
from packtrain.stages.render.lost_content import LOST_CONTENT
from packtrain.stages.render.rendered import Rendered
from packtrain.stages.render.renderer import Renderer
from packtrain.stages.template.chat_template import ChatTemplate

EVERYTHING = ("system", "user", "assistant", "tool_calls", "tool_results", "tools")
TEXTS_ONLY = (
    "{% for m in messages %}{% if m.role in ['system', 'user', 'assistant'] %}"
    "<{{ m.role }}>{{ m.content if m.content is string else '' }}</>{% endif %}{% endfor %}"
)
LATE = (
    "{% for m in messages if m.role != 'system' %}<{{ m.role }}>"
    "{% if loop.last and m.role == 'user' and messages[0].role == 'system' %}{{ messages[0].content }}\n{% endif %}"
    "{{ m.content }}</>{% endfor %}"
)
"""Writes the system message before the last message, if that is the user's."""
EACH = "{%% for m in messages %%}<{{ m.role }}>%s</>{%% endfor %%}"
TOOLED = "{% if tools %}WAY{% endif %}{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
CALL = {"type": "function", "id": "1", "function": {"name": "find", "arguments": {"where": "here"}}}
OTHER = {"type": "function", "id": "2", "function": {"name": "halt", "arguments": {}}}
TOOL = {"type": "function", "function": {"name": "find", "description": "Finds.", "parameters": {"type": "object"}}}
SECOND = {"type": "function", "function": {"name": "halt", "description": "Halts.", "parameters": {"type": "object"}}}


def system(content: Any) -> dict[str, Any]:
    return {"role": "system", "content": content}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def answer(content: Any, **keys: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **keys}


def rendered(source: str, messages: Messages, tools: Any = None, allow: tuple[str, ...] = ()) -> Rendered:
    """A row, whose last message is the completion if the assistant says it."""
    renderer = Renderer(ChatTemplate(source, {}, "mules"), allow_lost=allow)
    prompt_length = len(messages) - (messages[-1]["role"] == "assistant")
    row = renderer(messages[:prompt_length], messages[prompt_length:], tools)
    assert renderer.mismatches == 0
    return row


def lost(
    source: str, messages: Messages, tools: Any = None, allow: tuple[str, ...] = (), reason: str = LOST_CONTENT
) -> str:
    """What a row is refused with."""
    with pytest.raises(RowRejectedError) as caught:
        rendered(source, messages, tools, allow)
    assert caught.value.reason == reason
    return caught.value.detail


# --- contents ---


def test_a_message_is_lost_in_the_row_in_which_it_is_not_written() -> None:
    asking = [system("Be brief."), user("Why?")]
    assert rendered(LATE, asking).text == "<user>Be brief.\nWhy?</>"
    assert rendered(LATE, [user("Why?"), answer("So.")]).lost == ()
    detail = lost(LATE, [*asking, answer("So.")])
    assert "message 1 (" in detail
    assert "tokenizer.allow_lost: [system]" in detail
    assert rendered(LATE, [*asking, answer("So.")], allow=("system",)).lost == ("system",)
    assert lost(LATE, [*asking, answer("So.")], allow=("assistant", "tools"))


@pytest.mark.parametrize("role", ["developer", "robot", "tool"])
def test_a_role_that_the_template_skips_is_refused(role: str) -> None:
    messages = [user("u"), {"role": role, "content": "something"}, answer("a")]
    detail = lost(TEXTS_ONLY, messages, reason=LOST_CONTENT if role != "robot" else "unknown_role")
    assert f"message 2 ({role!r})" in detail
    assert ("allow_lost" in detail) == (role != "robot")
    for blank in ("", " \n\t", "\u00a0"):
        assert rendered(TEXTS_ONLY, [user("u"), {"role": role, "content": blank}, answer("a")]).lost == ()


@pytest.mark.parametrize(
    "way",
    [
        "{{ m.content }}",
        "{{ m.content | trim }}",
        "{{ m.content.strip() }}",
        "{{ m.content | tojson }}",
        "{{ '%s!' % m.content }}",
        "{{ m.content | replace('e', 'E') }}",
        "{{ m.content | indent(2) }}",
        "{{ m.content | list | join }}",
        "{{ m | tojson }}",
    ],
)
def test_words_that_are_written_in_any_way_are_kept(way: str) -> None:
    for content in ("Rue de l'Été 5", "!!!", "7", "<b>", "中文", "a|b"):
        assert rendered(EACH % way, [system(content), user(content), answer(content)]).lost == ()


@pytest.mark.parametrize("content", ["hi", "think", ">", "/"])
def test_words_that_the_text_before_them_has_too_are_kept(content: str) -> None:
    way = "{{ ('<think></think>' + m.content).split('</think>')[-1] }}"
    assert rendered(EACH % way, [user(content), answer(content)]).unproved == ""


@pytest.mark.parametrize("way", ["", "{{ m.content | length }}", "{{ 'said' if m.content else '' }}", "{{ m.role }}"])
def test_words_that_leave_only_a_shadow_are_lost(way: str) -> None:
    assert "message 1 (" in lost(EACH % way, [user("Why?"), answer("So.")])


# --- tool calls, results and tools ---

CALLING = "{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}{% if m.tool_calls %}WAY{% endif %}</>{% endfor %}"


@pytest.mark.parametrize(
    "way",
    [
        "{{ m.tool_calls | tojson }}",
        "{% for c in m.tool_calls %}{{ c | tojson }}{% endfor %}",
        "{% for c in m.tool_calls %}{{ c.function.name }}({{ c.function.arguments }}){% endfor %}",
        "{% for c in m.tool_calls %}{{ '%s %s' % (c.function.name, c.function.arguments) }}{% endfor %}",
        "{{ m.tool_calls }}",
        "{{ m | tojson }}",
    ],
)
def test_tool_calls_that_are_written_in_any_way_are_kept(way: str) -> None:
    for calls in ([CALL], [CALL, OTHER]):
        messages = [user("u"), answer(None, tool_calls=calls), answer("v")]
        assert rendered(CALLING.replace("WAY", way), messages).lost == ()


def test_tool_calls_that_are_skipped_are_refused() -> None:
    with_two_calls = [user("u"), answer(None, tool_calls=[CALL, OTHER])]
    with_one_call = [user("u"), answer("v", tool_calls=[CALL])]
    assert "tool call 1 of message 2" in lost(TEXTS_ONLY, with_one_call)
    first = CALLING.replace("WAY", "{{ m.tool_calls[0] | tojson }}")
    assert "tool call 2 of message 2" in lost(first, with_two_calls)
    assert rendered(first, with_one_call).lost == ()
    assert rendered(first, with_two_calls, allow=("tool_calls",)).lost == ("tool_calls",)
    assert rendered(TEXTS_ONLY, [user("u"), answer("v", tool_calls=[])]).lost == ()


@pytest.mark.parametrize(
    ("way", "lost_part"),
    [
        ("{{ c.function.name }}", "what"),
        ("{{ c.function.name }}{% for k, v in c.function.arguments.items() %}{{ k }}{% endfor %}", "one way"),
        ("{{ c.function.name }}{% for k, v in c.function.arguments.items() %}{{ v }};{% endfor %}", "what"),
        (
            "{{ c.function.name }}{% for k, v in c.function.arguments.items() %}{{ k }}={{ v[:3] }};{% endfor %}",
            "one way",
        ),
        ("{{ c.function.name }}what={{ c.function.arguments.what }}", "where"),
        ("{{ c.function.arguments | tojson }}", "find"),
        ("{{ c.function.name }}{{ '%s' % c.function.arguments.what }}", "what"),
    ],
)
def test_parts_of_calls_that_are_cut_or_skipped_are_refused(way: str, lost_part: str) -> None:
    call = {"function": {"name": "find", "arguments": {"what": "one way", "where": "the other way"}}}
    way = way.replace("ARGUMENTS", "c.function.arguments.items()")
    source = CALLING.replace("WAY", "{% for c in m.tool_calls %}" + way + "{% endfor %}")
    messages = [user("what where find: one way, the other way"), answer("one way", tool_calls=[call]), answer("v")]
    assert f"{lost_part!r} of the tool calls of message 2" in lost(source, messages)
    assert rendered(source, messages, allow=("tool_calls",)).lost == ("tool_calls",)


def test_equal_values_of_calls_are_counted() -> None:
    call = {"function": {"name": "find", "arguments": {"what": "way", "number": 31}}}
    arguments = "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}"
    source = CALLING.replace("WAY", "{% for c in m.tool_calls %}{{ c.function.name }}" + arguments + "{% endfor %}")
    row = [user("u"), answer("", tool_calls=[call, call])]
    assert rendered(source, row).lost == ()
    only_first = source.replace(arguments, "{% if loop.first %}" + arguments + "{% endif %}")
    assert "of the tool calls of message 2" in lost(only_first, row)
    assert "'31'" in lost(source.replace("{{ v }}", "{{ v if v is string }}"), row)


@pytest.mark.parametrize(("role", "word"), [("tool", "tool_results"), ("user", "user"), ("system", "system")])
def test_contents_that_are_cut_are_refused(role: str, word: str) -> None:
    source = EACH % "{{ m.content[:6] }}"
    messages = [{"role": role, "content": "a long result"}, user("short"), answer("So.")]
    assert "message 1 (" in lost(source, messages)
    assert rendered(source, messages, allow=(word,)).lost == (word,)
    assert rendered(source, [{"role": role, "content": "brief "}, *messages[1:]]).lost == ()


def test_contents_beside_tool_calls_are_lost_where_the_template_takes_one_of_both() -> None:
    source = (
        "{% for m in messages %}<{{ m.role }}>{{ m.tool_calls | tojson if m.tool_calls else m.content }}</>{% endfor %}"
    )
    row = [user("u"), answer("I look it up.", tool_calls=[CALL])]
    assert "message 2 (" in lost(source, row)
    assert rendered(source, row, allow=("assistant",)).lost == ("assistant",)
    assert rendered(source, [user("u"), answer("", tool_calls=[CALL])]).lost == ()


@pytest.mark.parametrize(
    "way",
    [
        "{{ tools | tojson }}",
        "{% for t in tools %}{{ t | tojson }}{% endfor %}",
        "{% for t in tools %}{{ t.function | tojson }}{% endfor %}",
        "{% for t in tools %}{{ t.function.name }}{% endfor %}",
        "{% for t in tools %}{% for k, v in t.function.items() %}{{ k }}{{ v if v is string else v | tojson }}"
        "{% endfor %}{% endfor %}",
        "{{ tools }}",
        "{% set ns = namespace(s='') %}{% for t in tools %}{% set ns.s = ns.s ~ (t | tojson) %}{% endfor %}"
        "{{ ns.s | trim | replace('x', 'y') }}",
    ],
)
def test_tools_that_are_written_in_any_way_are_kept(way: str) -> None:
    for tools in ([TOOL], [TOOL, SECOND]):
        for content in ("u", "find halt"):
            assert rendered(TOOLED.replace("WAY", way), [user(content), answer("v")], tools).lost == ()


def test_tools_that_are_skipped_are_named() -> None:
    messages = [user("find, halt"), answer("v")]
    assert "find, halt" in lost(TEXTS_ONLY, messages, [TOOL, SECOND])
    assert "tokenizer.allow_lost: [tools]" in lost(TEXTS_ONLY, messages, [TOOL, SECOND])
    assert "find" not in lost(TOOLED.replace("WAY", "{{ tools[0] | tojson }}"), messages, [TOOL, SECOND])
    assert rendered(TEXTS_ONLY, messages, []).lost == ()
    assert rendered(TEXTS_ONLY, messages, [TOOL], allow=("tools",)).lost == ("tools",)


def test_all_losses_of_a_row_and_those_allowed_before_are_named_together() -> None:
    messages = [system("Be brief."), user("hi"), {"role": "tool", "content": "42"}, answer("yes")]
    source = "{% for m in messages if m.role in ['user', 'assistant'] %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
    detail = lost(source, messages, [TOOL], ("tool_calls",))
    assert "message 1 (" in detail
    assert detail.endswith("tokenizer.allow_lost: [system, tool_calls, tool_results, tools]")


# --- reasoning ---


def test_a_thought_whose_words_the_template_has_too_makes_no_turn() -> None:
    """Nothing shows that the text between the contents has not come from the thought."""
    row = rendered(THINKING, [user("u"), answer("a", reasoning_content="assistant"), user("w"), answer("b")])
    assert row.lost == ()
    assert row.unproved


def test_a_thought_that_is_written_but_not_followed_is_not_dropped() -> None:
    hidden = "{% if m.reasoning_content %}{{ '(%s)' % m.reasoning_content }}{% endif %}{{ m.content }}"
    row = rendered(EACH % hidden, [user("u"), answer("a", reasoning_content="assistant"), user("w"), answer("b")])
    assert row.lost == ()
    assert row.unproved


THINKING = (
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' and not loop.last %}"
    "{{ m.content.split('</think>')[-1] }}{% else %}"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% endif %}"
    "</>{% endfor %}"
)


def test_reasoning_of_earlier_turns_is_named_and_not_refused() -> None:
    last = [user("w"), answer("<think>more</think>b")]
    assert rendered(THINKING, [user("u"), answer("<think>hm</think>a"), *last]).lost == ("reasoning",)
    assert rendered(THINKING, [user("u"), answer("<think>\n</think>a"), *last]).lost == ()
    assert rendered(THINKING, [user("u"), answer("a"), *last]).lost == ()
    assert rendered(THINKING, [user("u"), answer("a", reasoning_content="hm"), *last]).lost == ("reasoning",)
    assert rendered(THINKING, last[1:]).lost == rendered(THINKING, last).lost == ()
    assert rendered(THINKING, [user("u"), answer("<think>only</think>"), *last]).lost == ("reasoning",)
