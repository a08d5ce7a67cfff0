"""Where turns end, under templates that end earlier turns, last turns and calls in their own ways."""

from typing import Any

import pytest
from packtrain.schemas.rows import Messages, SpanKind
from packtrain.stages.render.rendered import Rendered
from packtrain.stages.render.renderer import Renderer
from packtrain.stages.template.chat_template import ChatTemplate

STOPS = ("<|im_start|>", "<|im_end|>", "<|eot|>", "<|open|>", "<|sep|>", "<|close|>", "<s>")
PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"


def each(end: str, *, prompt: str = PROMPT, tail: str = "") -> str:
    """A template of messages with this end of an answer, and `<|im_end|>` after the others."""
    answer = "{% if m.role == 'assistant' %}" + end + "{% else %}<|im_end|>{% endif %}{{ '\n' }}"
    return (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
        + answer
        + "{% endfor %}"
        + tail
        + prompt
    )


def turns(template: str, *answers: str, stops: tuple[str, ...] = (), **keys: Any) -> list[str]:
    """What is trained of each turn; `keys` go to every answer."""
    row = rendered(template, *answers, stops=stops, **keys)
    assert row.unproved == ""
    text_of_turn: dict[int, str] = {}
    begin = 0
    for end, kind, turn in zip(row.spans.ends, row.spans.kinds, row.spans.turns, strict=True):
        if kind in (SpanKind.HISTORY, SpanKind.HISTORY_END, SpanKind.ASSISTANT, SpanKind.END):
            text_of_turn[turn] = text_of_turn.get(turn, "") + row.text[begin:end]
        begin = end
    return list(text_of_turn.values())


def rendered(template: str, *answers: str, stops: tuple[str, ...] = (), **keys: Any) -> Rendered:
    renderer = Renderer(
        ChatTemplate(template, {"bos_token": "<s>"}, "ends"), special_tokens=STOPS, generation_stops=stops
    )
    messages: Messages = []
    for number, content in enumerate(answers):
        messages += [{"role": "user", "content": f"q{number}"}, {"role": "assistant", "content": content, **keys}]
    row = renderer(messages[:-1], messages[-1:])
    assert renderer.mismatches == 0
    return row


def test_earlier_turns_keep_an_end_of_their_own() -> None:
    template = each("{{ '<|eot|>' if loop.last else '<|im_end|>' }}")
    assert turns(template, "a", "b", "c") == ["a<|im_end|>", "b<|im_end|>", "c<|eot|>"]


def test_a_last_turn_may_be_left_open() -> None:
    assert turns(each("{{ '' if loop.last else '<|im_end|>' }}"), "a", "b") == ["a<|im_end|>", "b"]


def test_a_remark_before_the_end_belongs_to_the_turn() -> None:
    template = each("{% if m.note %}{{ ' (' + m.note + ')' }}{% endif %}<|im_end|>")
    assert turns(template, "a", "b", note="cut") == ["a (cut)<|im_end|>", "b (cut)<|im_end|>"]
    assert turns(template, "a", "b") == ["a<|im_end|>", "b<|im_end|>"]


def test_a_turn_that_closes_several_parts_ends_with_the_last() -> None:
    end = "<|close|>answer<|sep|><|close|>message<|sep|><|im_end|>"
    assert turns(each(end), "a", "b") == ["a" + end, "b" + end]


@pytest.mark.parametrize("stops", [("<|im_end|>",), ("<|eot|>",), ()])
def test_a_turn_closes_where_a_generation_would_stop(stops: tuple[str, ...]) -> None:
    closed = "<|im_end|>" if stops == ("<|im_end|>",) else "<|im_end|>\n<|eot|>"
    template = each("{{ '<|im_end|>\n<|eot|>' }}")
    assert turns(template, "a", "b", stops=stops) == ["a" + closed, "b" + closed]


def test_a_header_that_is_opened_at_the_end_is_not_trained() -> None:
    template = each("<|im_end|>", prompt="", tail="{{ '<|im_start|>assistant\n' }}")
    assert turns(template, "a", "b") == ["a<|im_end|>", "b<|im_end|>"]
    half = each(
        "<|im_end|>", prompt="{% if add_generation_prompt %}{{ 'assistant\n' }}{% endif %}", tail="<|im_start|>"
    )
    assert turns(half, "a", "b", stops=("<|im_end|>",)) == ["a<|im_end|>", "b<|im_end|>"]
    assert rendered(half, "a", "b").unproved  # nothing shows that <|im_start|> does not close turns


def test_what_ends_every_text_is_no_end() -> None:
    template = each("<|im_end|>", tail="{% if not add_generation_prompt %}<|eot|>{% endif %}")
    assert turns(template, "a", "b") == ["a<|im_end|>", "b<|im_end|>"]


def test_an_empty_answer_that_is_skipped_has_a_turn() -> None:
    template = each("<|im_end|>").replace("+ m.content }}", "}}{% if m.content %}{{ m.content }}{% endif %}")
    assert turns(template, "a", "", "c") == ["a<|im_end|>", "<|im_end|>", "c<|im_end|>"]


def test_a_number_in_headers_is_not_trained() -> None:
    template = each("<|im_end|>").replace("{{ '<|im_start|>'", "{{ '<' ~ loop.index ~ '>' }}{{ '<|im_start|>'")
    row = rendered(template, "a", "b", "c")
    assert row.unproved or turns(template, "a", "b", "c") == ["a<|im_end|>", "b<|im_end|>", "c<|im_end|>"]
