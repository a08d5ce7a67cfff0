"""Where a turn begins depends on that turn and what comes before it, not on how earlier turns of the row look."""

from typing import Any

import pytest
from packtrain.schemas.rows import Messages
from packtrain.stages.render.renderer import Renderer
from packtrain.stages.template.chat_template import ChatTemplate

from tests.stages.render.test_span_labels import pieces, renderer_of

END = "<|im_end|>"
HEADER = "<|im_start|>assistant\n"
OPENS_A_THOUGHT = (  # earlier answers lose their thoughts, as QwQ's
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|im_start|>assistant\n' }}"
    "{{ m.content if loop.last else m.content.split('</think>')[-1].lstrip('\n') }}{{ '<|im_end|>\n' }}"
    "{% else %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
)
WRITES_AN_EMPTY_THOUGHT = (  # thoughts are kept, and the generation prompt has an empty one, as Qwen3's
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.reasoning_content is defined %}{{ '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}{% endif %}"
    "{{ m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n\n</think>\n\n' }}{% endif %}"
)
ASKS_FOR_NO_THOUGHT = WRITES_AN_EMPTY_THOUGHT.replace(  # the generation prompt depends on the last question
    "'<|im_start|>assistant\n<think>\n\n</think>\n\n'",
    "'<|im_start|>assistant\n' + ('<think>\n\n</think>\n\n' if '/no' in messages[-1].content else '')",
)
NO_PROMPT = (
    "{% for m in messages %}{{ ('[' + m.content + ']') if m.role == 'user' else m.content + '</s>' }}{% endfor %}"
)


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def answer(content: str, **keys: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **keys}


def trained(template: str, *messages: dict[str, Any]) -> list[str]:
    """The text of each turn that is trained, in one piece."""
    chat: Messages = list(messages)
    rendered = renderer_of(template)(chat[:-1], chat[-1:])
    assert rendered.unproved == ""
    turns = [""]
    for kind, text in pieces(rendered):
        turns[-1] += text
        if kind in "Ee":
            turns.append("")
    return turns[:-1]


THOUGHT = "<think>\nwhy not\n</think>\n\nb"


@pytest.mark.parametrize("earlier", [[], ["a"], ["a", "c"], [THOUGHT]])
def test_a_thought_that_the_prompt_opens_begins_after_its_tag(earlier: list[str]) -> None:
    before = [message for text in earlier for message in (user("p"), answer(text))]
    turns = trained(OPENS_A_THOUGHT, *before, user("q"), answer(THOUGHT))
    assert turns[-1] == "why not\n</think>\n\nb" + END
    assert turns[:-1] == [text.split("\n")[-1] + END for text in earlier]


@pytest.mark.parametrize("earlier", [[], ["x"], ["x", "y"], ["", "x"], [None, "x"], ["x", None]])
@pytest.mark.parametrize("thought", ["", None, "z"])
def test_an_empty_thought_of_the_prompt_is_not_trained(earlier: list[str | None], thought: str | None) -> None:
    def said(thought: str | None) -> dict[str, Any]:
        return answer("done") if thought is None else answer("done", reasoning_content=thought)

    turns = trained(
        WRITES_AN_EMPTY_THOUGHT, *(m for t in earlier for m in (user("p"), said(t))), user("q"), said(thought)
    )
    assert turns == [f"{t}\n</think>\n\ndone{END}" if t else f"done{END}" for t in (*earlier, thought)]


@pytest.mark.parametrize("first", ["p", "/no p"])
@pytest.mark.parametrize("second", ["q", "/no q"])
def test_a_prompt_that_depends_on_the_question_is_not_guessed(first: str, second: str) -> None:
    chat = (user(first), answer("a", reasoning_content="x"), user(second), answer("b", reasoning_content="y"))
    if "/no" in first + second:  # the prompt has an empty thought where the text has another one
        assert renderer_of(ASKS_FOR_NO_THOUGHT)([*chat[:-1]], [*chat[-1:]]).unproved
    else:
        assert trained(ASKS_FOR_NO_THOUGHT, *chat) == [f"<think>\n{t}\n</think>\n\n{a}{END}" for t, a in ("xa", "yb")]


CLOSES_A_THOUGHT = (  # answers without a thought get an empty one, and the generation prompt opens one, as Nemotron's
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.role == 'assistant' %}{{ '<think></think>' }}{% endif %}{{ m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
)


@pytest.mark.parametrize("tags", [(), ("<think>", "</think>")])
def test_an_empty_thought_is_closed_whether_its_tags_are_special_tokens(tags: tuple[str, ...]) -> None:
    template = ChatTemplate(CLOSES_A_THOUGHT, {}, "closes")
    renderer = Renderer(template, special_tokens=("<|im_start|>", END, *tags))
    rendered = renderer([user("p"), answer("a"), user("q")], [answer("b")])
    assert rendered.unproved == ""
    assert rendered.text[rendered.completion_begin :] == f"b{END}\n"


def test_long_conversations_need_few_renderings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a generation prompt that is found in the text, one rendering of what precedes a turn serves for all."""
    renderer = renderer_of(NO_PROMPT)
    chat: Messages = [message for number in range(50) for message in (user(f"q{number}"), answer(f"a{number}"))]
    rendered = 0
    render = renderer.template.guarded

    def counted(*args: Any, **keys: Any) -> str:
        nonlocal rendered
        rendered += 1
        return render(*args, **keys)

    assert renderer.untraced(chat[:2], chat[2:4]).unproved == ""
    monkeypatch.setattr(renderer.template, "guarded", counted)
    assert renderer.untraced(chat[:-1], chat[-1:]).unproved == ""
    assert 1 <= rendered <= 4
