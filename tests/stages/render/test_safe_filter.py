"""Words that go through the filter `safe` are followed, and the text stays jinja2's own."""

import pytest
from packtrain.schemas.rows import Messages
from packtrain.stages.render.renderer import Renderer
from packtrain.stages.template.chat_template import ChatTemplate

from tests.stages.render.test_span_labels import pieces, renderer_of

CALLING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}[{{ c.function.name }}]WAY{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VALUES = ('say "<b>" & it\'s', "one", "", "<|im_end|>", "{{ x }}", "  spaces ")


def conversation(value: str) -> Messages:
    call = {"id": "1", "type": "function", "function": {"name": "find", "arguments": {"what": value, "number": 2}}}
    return [{"role": "user", "content": value}, {"role": "assistant", "content": value, "tool_calls": [call]}]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize(
    "way",
    [
        "{{ c.function.arguments | tojson | safe }}",
        "{{ (c.function.arguments | tojson | safe) }}",
        "{{ 'args:' + (c.function.arguments | tojson | safe) + ';' }}",
        "{{ 'args:' ~ (c.function.arguments | tojson | safe) ~ ';' }}",
        "{{ (c.function.arguments | tojson | safe).strip('{}') }}",
        "{% set text = c.function.arguments | tojson | safe %}{{ text | trim }}",
        "{{ [c.function.arguments | tojson | safe, 'end'] | join(' ') }}",
    ],
)
def test_calls_are_followed(way: str, value: str) -> None:
    renderer = renderer_of(CALLING.replace("WAY", way))
    messages = conversation(value)
    rendered = renderer(messages[:1], messages[1:])
    assert rendered.text == renderer.template.render(messages)
    escapes = "'args:' +" in way and rendered.text.count("&")
    assert rendered.unproved == "" or escapes
    if not rendered.unproved:
        *_, (kind, text), end = pieces(rendered)
        assert (kind, end) == ("C", ("E", "<|im_end|>"))
        assert text.startswith("[find]")


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize(
    "way",
    [
        "{{ m.content | safe }}",
        "{{ (m.content | safe) + '<' + m.content }}",
        "{{ m.content + (m.content | safe) }}",
        "{{ '<' + (m.content | safe) | upper }}",
        "{{ (m.content | safe).replace('<', m.content) }}",
        "{{ (m.content | safe)[1:] }}|{{ (m.content | safe).split('<') | join('-') }}",
        "{{ '%s' | safe % m.content }}{{ (m.content | safe).lstrip() + m.content.rstrip() | safe }}",
        "{{ m.content | safe | tojson }}{{ m.content | safe | length }}{{ (m.content | safe) ~ m.content }}",
        "{{ (m.content | safe | e) + (m.content | e) }}{{ (m.content | safe).join(['<', 'b']) }}",
    ],
)
def test_the_text_is_that_of_jinja2(way: str, value: str) -> None:
    source = "{% for m in messages %}{{ m.role }}:" + way + "\n{% endfor %}"
    renderer = Renderer(ChatTemplate(source, {}, "safe"), allow_lost=("user", "assistant"))
    messages: Messages = [{"role": "user", "content": value}, {"role": "assistant", "content": value}]
    assert renderer(messages[:1], messages[1:]).text == renderer.template.render(messages)
    assert renderer.mismatches == 0
