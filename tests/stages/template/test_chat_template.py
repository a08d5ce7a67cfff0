"""ChatTemplate against transformers' own rendering, and what it refuses."""

import datetime as dt
import enum
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.schemas.errors import RowRejectedError, TemplateError
from packtrain.schemas.rows import Messages
from packtrain.stages.render.renderer import Renderer
from packtrain.stages.template.chat_template import ChatTemplate, plain

CONVERSATION: Messages = [
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": '2 < 3 & "é"?\n'},
    {"role": "assistant", "content": "yes", "thinking": "hm", "tool_calls": None},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"ä": [1, None, True]}}}],
    },
]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "<b>'x'</b>", "parameters": {}}}]

SOURCES = {
    "whitespace": "  {% for m in messages %}\n    {% if m.role == 'user' %}\n  u\n    {% endif %}\n{% endfor %}\n\n",
    "tojson": "{{ messages | tojson }}{{ tools | tojson(indent=2) }}",
    "printed": "{{ messages }}{{ tools }}{{ documents }}{{ add_generation_prompt }}",
    "reasoning": "{% for m in messages %}{{ m.reasoning_content }}|{{ m.thinking }}|{{ m.reasoning }};{% endfor %}",
    "variables": "{{ bos_token }}{{ eos_token }}{{ nothing }}",
    "loop controls": "{% for m in messages %}{% if loop.index == 2 %}{% continue %}{% endif %}{{ m.role }}"
    "{% if loop.index == 3 %}{% break %}{% endif %}{% endfor %}",
    "generation": "{% set x = 1 %}{% for m in messages %}{% generation %}{% set x = 2 %}{{ m.content }} "
    "{%- endgeneration %}{{ x }}{% endfor %}",
    "namespace": "{% set ns = namespace(a=1) %}{% for m in messages %}{% set ns.a = ns.a + 1 %}{% endfor %}{{ ns }}",
    "dict": "{{ dict(a=1, b=2) }}{{ dict.mro is defined }}",
    "macro": "{% macro show(m, k='content') %}[{{ m[k] | trim }}]{% endmacro %}{{ show(messages[0]) }}",
    "joined": "{{ messages | map(attribute='role') | join(',') }}{{ messages[::-1][0].role ~ 1 ~ none }}",
    "has a key": "{% for m in messages %}{{ 'content' in m }}{{ m.tool_calls is defined }}{% endfor %}",
    "raises": "{{ raise_exception('no roles like ' + messages[0].role) }}",
    "undefined": "{{ messages[0].nothing.more }}",
    "type error": "{{ messages[0].content + 1 }}",
    "sandboxed": "{{ ''.__class__.__mro__ }}",
    "sandboxed call": "{{ messages.append(1) }}",
    "private": "{% set ns = namespace(_a=1) %}",
    "private later": "{% set ns = namespace() %}{% set ns._a = 1 %}",
    "format": "{{ '{0.__class__}'.format(1) }}",
    "divides": "{{ 1 // 0 }}",
}


def oracle(source: str, messages: Any, tools: Any, prompt: bool, variables: dict[str, Any]) -> str:
    """What transformers renders, with what `apply_chat_template` does before."""
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    chat = [{key: value for key, value in message.items() if value is not None} for message in messages]
    rendered, _ = utils.render_jinja_template(
        conversations=[chat], tools=tools, chat_template=source, add_generation_prompt=prompt, **variables
    )
    return str(rendered[0])


@pytest.mark.parametrize("tools", [None, [], TOOLS], ids=["none", "empty", "tools"])
@pytest.mark.parametrize("name", SOURCES)
def test_renders_or_refuses_as_transformers(name: str, tools: Any) -> None:
    variables = {"bos_token": "<s>", "eos_token": "</s>"}
    template = ChatTemplate(SOURCES[name], variables, name)
    pytest.importorskip("transformers")
    try:
        expected = oracle(SOURCES[name], CONVERSATION, tools, True, variables)
    except Exception:
        with pytest.raises(RowRejectedError) as refused:
            template.render(CONVERSATION, tools, add_generation_prompt=True)
        assert refused.value.reason == "template_error"
        assert f"'{name}'" in refused.value.detail
    else:
        assert template.render(CONVERSATION, tools, add_generation_prompt=True) == expected


@given(st.text(), st.text())
def test_json_and_text_of_any_content(first: str, second: str) -> None:
    source = "{% for m in messages %}{{ m.content }}{{ m | tojson }}{{ m.content | trim }}\n{% endfor %}"
    messages = [{"role": "user", "content": first}, {"role": "assistant", "content": second}]
    assert ChatTemplate(source, {}, "t").render(messages) == oracle(source, messages, None, False, {})


class Colour(str, enum.Enum):  # noqa: UP042 - a StrEnum prints as its value, this does not
    """A text with methods of its own."""

    RED = "red"


class Pair(NamedTuple):
    """A tuple that is not made of one argument."""

    left: Any
    right: Any


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, True),
        ({Colour.RED: [Colour.RED]}, {"red": ["red"]}),
        (Pair(1, Colour.RED), (1, "red")),
        ((1, None), (1, None)),
        ({"a": [1.5]}, {"a": [1.5]}),
        (dt.date(2024, 1, 2), "<date>"),
    ],
)
def test_templates_see_plain_data(value: Any, expected: Any) -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    result = plain(value)
    assert result == expected
    assert repr(result) == repr(expected)
    assert result == utils._plain_template_data(value)


def test_the_date_is_pinned() -> None:
    source = "{{ strftime_now('%d %b %Y %H:%M') }}"
    template = ChatTemplate(source, {}, "dated", "2024-07-26")
    assert template.render(CONVERSATION[:1]) == "26 Jul 2024 00:00"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages | map(attribute='role') }}",
        "a{{ 'b' ~ (messages | selectattr('content')) }}",
        "{{ [messages | map('upper')] }}",
        "{{ messages[0].items }}",
        "{% macro f() %}{% endmacro %}{{ cycler('a') }}",
    ],
)
def test_addresses_in_memory_are_never_written(source: str) -> None:
    with pytest.raises(TemplateError, match="address"):
        ChatTemplate(source, {}, "t").render([{"role": "user", "content": "hi"}])
    renderer = Renderer(ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}" + source, {}, "t"))
    for trace in range(3):  # the quick way first makes a trace
        with pytest.raises(TemplateError, match="address"):
            renderer([{"role": "user", "content": f"hi {trace}"}], [{"role": "assistant", "content": "a"}])


def test_a_template_that_nests_without_end_does_not_compile() -> None:
    deep = "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}"
    with pytest.raises(TemplateError, match="nests too deeply"):
        ChatTemplate(deep, {}, "t")


@pytest.mark.parametrize(
    "expression", ["'%c' % 55296", "'%5c'|format(57343)", "'{:c}'.format(55296)", "'%(a)c' % {'a': 55296}"]
)
def test_a_template_cannot_make_half_a_character(expression: str) -> None:
    with pytest.raises(RowRejectedError, match="half a character"):
        ChatTemplate("{{ " + expression + " }}", {}, "t").render([{"role": "user", "content": "hi"}])


def test_addresses_that_the_row_itself_writes_are_text() -> None:
    content = "<object at 0x7f00>"
    template = ChatTemplate("{{ messages[0].content }}{{ messages[0] }}{{ 'a' ~ messages }}", {}, "t")
    assert template.render([{"role": "user", "content": content}]).count(content) == 3
