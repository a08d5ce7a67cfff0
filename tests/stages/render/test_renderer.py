"""Where completions begin, what is not traced, and traces that lie."""

from typing import Any

import pytest
from packtrain.stages.render import content_proxy
from packtrain.stages.render import renderer as renderer_module
from packtrain.stages.render.renderer import Renderer
from packtrain.stages.template.chat_template import ChatTemplate

from tests.kit import CHATML

THINKING = (
    "{% for m in messages %}<{{ m.role }}>{% if loop.last %}<think></think>{% endif %}"
    "{% if '</think>' in m.content %}{{ m.content.split('</think>')[-1] }}"
    "{% else %}{{ m.content }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def user(text: Any) -> dict[str, Any]:
    """A message of the user."""
    return {"role": "user", "content": text}


def assistant(text: Any) -> dict[str, Any]:
    """A message of the assistant."""
    return {"role": "assistant", "content": text}


@pytest.mark.parametrize("source", [CHATML, THINKING])
@pytest.mark.parametrize("trace_rows", [True, False])
def test_where_the_completion_begins(source: str, trace_rows: bool) -> None:
    renderer = Renderer(ChatTemplate(source, {}, "t"), trace=trace_rows)
    for index in range(8):
        question = user(f"2+{index}?")
        reply = assistant(f"{2 + index}")
        text, begin = renderer([question], [reply])[:2]
        opening = "<|im_start|>assistant\n" if source is CHATML else "<assistant>"
        assert begin == text.index(opening) + len(opening)
        alone = renderer.template.render([question])
        assert renderer([question], [])[:2] == (alone, len(alone))
        assert renderer([], [question, reply])[:2] == (text, 0)
    assert (renderer.traced > 0) == trace_rows


def test_position_that_depends_on_the_data() -> None:
    # The generation prompt meets the content itself.
    source = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}abc{% endif %}"
    renderer = Renderer(ChatTemplate(source, {}, "t"))
    for reply, begin in [("abcd", 4), ("x", 1), ("abx", 3), ("", 1), ("abc", 4), ("a", 2)] * 2:
        assert renderer([user("q")], [assistant(reply)])[:2] == ("q" + reply, begin)
    assert renderer.mismatches == renderer.traced == 0  # what is proved of some contents only is never traced


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "x", "name": "y"},
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": "user", "content": 3},
        {"role": 3, "content": "x"},
        {"role": "user", "content": None},
        {"role": "user"},
        {"role": "user", "content": "x", "tool_calls": None},
    ],
)
def test_messages_of_another_make_go_to_jinja2(message: dict[str, Any]) -> None:
    source = "{% for m in messages %}{{ m.role }}{{ m.content }}{{ m.name }}{% endfor %}"
    renderer = Renderer(ChatTemplate(source, {}, "t"))
    for _ in range(5):
        assert renderer([message], [assistant("z")]) == renderer.untraced([message], [assistant("z")])
    assert renderer.traced == 0


def test_a_trace_that_lies_is_found_by_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lie: a placeholder that answers without noting what was asked."""
    monkeypatch.setattr(content_proxy.ContentProxy, "startswith", lambda self, text: False)
    monkeypatch.setattr(renderer_module, "CHECK_MASK", 0xF)
    liar = "{% for m in messages %}{{ 'Y' if m.content.startswith('yes') else 'N' }}{{ m.content }}{% endfor %}"
    renderer = Renderer(ChatTemplate(liar, {}, "t"))
    caught = 0
    for number in range(200):
        mismatches_before = renderer.mismatches
        text = renderer([user(f"yes {number}")], []).text
        caught += text[0] == "Y"
        assert renderer.mismatches - mismatches_before == (text[0] == "Y")  # who is caught gets the exact answer
    assert 0 < caught < 50
