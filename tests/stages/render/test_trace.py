"""Traces are exact or they are not made: templates of many manners against nasty contents."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.schemas.errors import RowRejectedError
from packtrain.schemas.rows import Messages
from packtrain.stages.render.renderer import Renderer
from packtrain.stages.template.chat_template import ChatTemplate

from tests.support.examples import examples

VARIABLES = {"bos_token": "<s>", "eos_token": "</s>"}


def each(body: str) -> str:
    """A template that does something with every message."""
    return "{% for message in messages %}" + body + "{% endfor %}"


TRACEABLE = {
    "chatml": each("{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}")
    + "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "no thought": each("{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}")
    + "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n\n</think>\n\n' }}{% endif %}",
    "llama 3": "{{ bos_token }}{{ 'Today: ' + strftime_now('%d %b %Y') }}"
    + each("{{ '<|h|>' ~ message.role | lower ~ '<|/h|>\n\n' + message.content | trim + '<|eot|>' }}")
    + "{% if add_generation_prompt %}<|h|>assistant<|/h|>\n\n{% endif %}",
    "mistral": "{{ bos_token }}"
    + each(
        "{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('must alternate') }}{% endif %}"
        "{% if message.role == 'user' %}[INST] {{ message.content }} [/INST]"
        "{% else %} {{ message.content.strip() }}{{ eos_token }}{% endif %}"
    ),
    "gemma": "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    + each(
        "{% set role = 'model' if message.role == 'assistant' else message.role %}"
        "<t>{{ role }}\n{{ message.content | trim }}</t>\n"
    )
    + "{% if add_generation_prompt %}<t>model\n{% endif %}",
    "qwen3": "{% set ns = namespace(last=messages|length - 1, seek=true) %}"
    "{% for message in messages[::-1] %}"
    "{% if ns.seek and message.role == 'user' and message.content is string and not"
    " (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}"
    "{% set ns.seek = false %}{% set ns.last = messages|length - 1 - loop.index0 %}{% endif %}{% endfor %}"
    + each(
        "{% set content = message.content %}{% set thought = '' %}"
        "{% if message.role == 'assistant' and '</think>' in content %}"
        "{% set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}"
        "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
        "{% if loop.index0 > ns.last and (loop.last or thought) %}"
        "{{ '<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}"
        "{% else %}{{ message.role + ':' + content }}{% endif %}<end>\n"
    )
    + "{% if add_generation_prompt %}{{ '<think>\n' }}{% endif %}",
    "next header": each("{{ '<s>' + message.role + '\n' + message.content }}")
    + "{% if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}",
    "lines": each("{% for line in message.content.split('\n') %}{{ line }};{% endfor %}"),
    "absent keys": each(
        "{{ message.tool_calls is defined }}{{ message.content.text is defined }}{{ message['x'] }}"
        "{% if message.content is mapping or message.content is not iterable %}odd{% endif %}"
        "{{ message.content }}"
    ),
    "only some": "{{ messages[-1].content }}",
    "prefix": each("{{ message.content }}") + "{% if add_generation_prompt %}a{% endif %}",
}

OTHERS = {  # rendered by jinja2
    "tilde": each("{{ loop.index ~ ': ' ~ message.content ~ none ~ message.content }}"),
    "truth": each(
        "{% if message.content %}{{ message.content }}{% else %}empty{% endif %}{{ message.content or 'e' }}"
    ),
    "equality": each(
        "{{ message.content == 'yes' }}{{ 'yes' != message.content }}{{ message.content in ['yes', ''] }}"
        "{{ message.content is eq('yes') }}{{ message.content == 1 }}{{ message.content is none }}"
    ),
    "in a literal": each("{{ message.content in 'yes or no' }}{{ message.content not in 'yes' }}"),
    "upper and replace": each("{{ message.content.upper() }}{{ message.content | replace('a', 'b') | lower }}"),
    "lists": each("{% set x = [message.content, 'b'] %}{{ x[0] }}{{ x | first }}{{ x | length }}")
    + "{{ (messages | map(attribute='content') | list)[0] }}"
    "{{ messages | selectattr('content') | list | length }}"
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
    "blocks and macros": "{% macro show(text, end='') %}[{{ text }}]{{ end }}{% endmacro %}"
    + each(
        "{% set body %}<{{ message.content }}>{% endset %}{{ show(body, end=message.content | trim) | trim }}"
        "{% filter trim %} {{ message.content }} {% endfilter %}"
        "{% macro around(x) %}{{ x }}({{ caller() }}){% endmacro %}"
        "{% call around(message.content) %}{{ message.content }}{% endcall %}"
    ),
    "inspects joined text": each(
        "{% set body = '(' ~ message.content ~ ')' %}"
        "{% if '))' in body | trim %}{{ body.strip('(') }}{% endif %}{{ (body + '.').startswith('(a') }}"
    ),
    "slicing": each("{{ message.content[1:] }}"),
    "iterating": each("{% for c in message.content %}{{ c }}.{% endfor %}"),
    "json": each("{{ message.content | tojson }}"),
    "keys": each("{% for key in message %}{{ key }}{% endfor %}"),
    "percent": each("{{ '%s!' % message.content }}{{ message.content % ('a',) }}{{ message.content | format('a') }}"),
    "format": each("{{ '{}!'.format(message.content) }}{{ message.content.format('a', x='b') }}"),
    "same": each("{{ message.content is sameas('a') }}{{ message.content is sameas('') }}{{ message.content }}"),
    "format map": each("{{ message.content.format_map({'x': message.content}) }}"),
    "escaped": each("{{ message.content + (message.content | e) }}{{ (message.content | e) + message.content }}"),
    "join method": each("{{ '-'.join([message.content, 'x']) }}"),
    "literal starts with": each("{{ 'yes'.startswith(message.content) }}"),
    "a dict looked up": each("{{ {'yes': 1}[message.content] }}"),
    "escaping": "{% autoescape true %}" + each("{{ message.content }}") + "{% endautoescape %}",
    "two contents": "{{ messages[0].content == messages[1].content }}",
    "changed": each("{% if loop.changed(message.content) %}x{% endif %}"),
    "generation": each("{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}|"),
    "default": each("{{ message.content | default('x', true) }}{{ message.name | default(message.content) }}"),
    "chained in": each("{{ 'a' in message.content in ['b'] }}"),
    "replaced by a content": each("{{ message.content.replace('a', message.content) }}"),
}

NASTY = (
    *("", " ", "\n", "yes", "no", "or", "a", "A", "abc", "</think>", "<think>", "<think>\nx\n</think>\n\ny"),
    *("<tool_response>", "<tool_response>x</tool_response>", "{{", "{% if %}", "%s", "%", "{}", "\\", "<|im_end|>"),
    *("<s>", "</s>", "🙂", "e\u0301", "\r\n", "\x1c", "\x1c x \x1f", "\u00a0x", "\u2028", "ß", "12", "\x00"),
    "\U000f0000",
)
contents = st.one_of(
    st.sampled_from(NASTY),
    st.lists(st.sampled_from(NASTY), max_size=4).map("".join),
    st.text(max_size=8),
)
LOSABLE = ("system", "user", "assistant", "tool_results")
ROLES = [
    (("user",), ("assistant",)),
    (("user", "assistant", "user"), ("assistant",)),
    (("system", "user"), ("assistant",)),
    (("user",), ("assistant", "tool", "assistant")),
    ((), ("user", "assistant")),
    (("user", "assistant"), ()),
    # Where no assistant speaks, there is no turn to prove: such rows are traced whatever becomes of their contents.
    (("user", "user"), ()),
    (("system", "user", "user"), ()),
]


def rows(roles: tuple[str, ...], texts: list[str]) -> Messages:
    """Messages of these roles and texts."""
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]


def answer(renderer: Any, *args: Any) -> Any:
    """What a renderer gives, or that it refused."""
    try:
        return renderer(*args)
    except RowRejectedError as error:
        return error.reason


@pytest.mark.parametrize("name", [*TRACEABLE, *OTHERS])
def test_a_trace_is_exact_whatever_the_contents(name: str) -> None:
    source = TRACEABLE.get(name) or OTHERS[name]
    template = ChatTemplate(source, VARIABLES, name, "2024-07-26")
    renderer = Renderer(template, allow_lost=LOSABLE)

    @examples(15, database=None)
    @given(st.data())
    def compare(data: st.DataObject) -> None:
        before, after = data.draw(st.sampled_from(ROLES))
        prompt = rows(before, [data.draw(contents) for _ in before])
        completion = rows(after, [data.draw(contents) for _ in after])
        actual = answer(renderer, prompt, completion)
        expected = answer(renderer.untraced, prompt, completion)
        assert actual == expected
        assert isinstance(expected, str) or expected.text == template.render(prompt + completion)

    compare()
    for question, reply in (("", ""), ("", "b"), ("a", "")):
        prompt = rows(("user",), [question])
        completion = rows(("assistant",), [reply])
        assert answer(renderer, prompt, completion) == answer(renderer.untraced, prompt, completion), (question, reply)
    for text in NASTY:
        row = rows(("user",), [text])
        assert answer(renderer, row, []) == answer(renderer.untraced, row, [])
    assert renderer.mismatches == 0
    assert (renderer.traced > 3) == (name in TRACEABLE) or name == "truth"
