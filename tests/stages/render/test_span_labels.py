"""Thoughts, tool calls and answers within located turns: what the data said, found again in a template's text."""

from typing import Any

import pytest
from packtrain.schemas.rows import Messages, SpanKind
from packtrain.stages.render.rendered import Rendered
from packtrain.stages.render.renderer import Renderer
from packtrain.stages.template.chat_template import ChatTemplate

from tests import kit

STOPS = ("<|im_end|>", "</s>")
LOSSES = ("system", "user", "assistant", "tool_calls", "tool_results", "tools")
KEPT = (  # writes fields, thoughts of earlier turns too
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.reasoning_content %}{{ '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}"
    "{{ '\n<call>' + c.function.name + ' ' + c.function.arguments | tojson + '</call>' }}"
    "{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
OPENED = KEPT.replace("'<|im_start|>assistant\n' }}{% endif %}", "'<|im_start|>assistant\n<think>\n' }}{% endif %}")
LONG = {"T": SpanKind.THOUGHT, "A": SpanKind.ASSISTANT, "C": SpanKind.TOOL_CALL, "E": SpanKind.END}
SHORT = {
    **{kind: letter for letter, kind in LONG.items()},
    SpanKind.HISTORY_THOUGHT: "t",
    SpanKind.HISTORY: "a",
    SpanKind.HISTORY_CALL: "c",
    SpanKind.HISTORY_END: "e",
}


def renderer_of(template: str) -> Renderer:
    """A renderer that may lose what the template leaves out."""
    variables = {"bos_token": "<s>", "eos_token": "</s>"}
    return Renderer(ChatTemplate(template, variables, "test", "2024-07-26"), special_tokens=STOPS, allow_lost=LOSSES)


def pieces(rendered: Rendered) -> list[tuple[str, str]]:
    """(letter of the kind, text) of the spans of turns."""
    spans_of_turns = []
    begin = 0
    for end, kind in zip(rendered.spans.ends, rendered.spans.kinds, strict=True):
        if kind in SHORT and end > begin:
            spans_of_turns.append((SHORT[SpanKind(kind)], rendered.text[begin:end]))
        begin = max(begin, end)
    return spans_of_turns


def said(renderer: Renderer, *messages: dict[str, Any]) -> list[tuple[str, str]]:
    """The pieces of the turns of a conversation."""
    chat: Messages = [{"role": "user", "content": "?"}]
    for message in messages:
        chat += [{"role": "assistant", **message}, {"role": "user", "content": "?"}]
    del chat[-1]
    rendered = renderer(chat[:-1], chat[-1:])
    assert rendered.unproved == ""
    return pieces(rendered)


CALL = {"type": "function", "id": "123456789", "function": {"name": "find", "arguments": {"what": "mules"}}}


@pytest.mark.parametrize(
    ("template", "message", "expected"),
    [
        # Tags that the data brings along.
        (kit.CHATML, {"content": "<think>Hm.</think>Yes."}, [("T", "<think>Hm."), ("A", "</think>Yes.")]),
        (kit.CHATML, {"content": "Hm.</think>Yes."}, [("T", "Hm."), ("A", "</think>Yes.")]),
        (kit.CHATML, {"content": "\n<think>Hm."}, [("T", "\n<think>Hm.")]),
        (kit.CHATML, {"content": "Say <think>."}, [("A", "Say <think>.")]),
        (kit.CHATML, {"content": "<think>\n\n</think>\n\nYes."}, [("A", "<think>\n\n</think>\n\nYes.")]),
        (kit.CHATML, {"content": "</think>Yes."}, [("A", "</think>Yes.")]),
        # A field that the template writes; tags in it are words.
        (
            KEPT,
            {"reasoning_content": "Hm.", "content": "Yes."},
            [("T", "<think>\nHm.\n"), ("A", "</think>\n\nYes.")],
        ),
        (
            KEPT,
            {"reasoning": "So</think>so<think>", "content": "A </think>tag."},
            [("T", "<think>\nSo</think>so<think>\n"), ("A", "</think>\n\nA </think>tag.")],
        ),
        (KEPT, {"thinking": "Yes.", "content": "Yes."}, [("T", "<think>\nYes.\n"), ("A", "</think>\n\nYes.")]),
        (KEPT, {"reasoning_content": "Hm.", "content": ""}, [("T", "<think>\nHm.\n"), ("A", "</think>\n\n")]),
        (KEPT, {"reasoning_content": " \n", "content": "Yes."}, [("A", "<think>\n \n\n</think>\n\nYes.")]),
        *((KEPT, {"reasoning_content": blank, "content": "Yes."}, None) for blank in ("", None)),
        # The generation prompt opens the thought.
        (OPENED, {"reasoning_content": "Hm.", "content": "Yes."}, [("T", "Hm.\n"), ("A", "</think>\n\nYes.")]),
        # Calls, with and without something before them.
        (
            KEPT,
            {"content": "Yes.", "tool_calls": [CALL, CALL]},
            [("A", "Yes."), ("C", '\n<call>find {"what": "mules"}</call>\n<call>find {"what": "mules"}</call>')],
        ),
        (KEPT, {"content": "", "tool_calls": [CALL]}, [("C", '\n<call>find {"what": "mules"}</call>')]),
        (
            KEPT,
            {"content": "", "reasoning_content": "<call>", "tool_calls": [CALL]},
            [("T", "<think>\n<call>\n"), ("A", "</think>\n\n\n"), ("C", '<call>find {"what": "mules"}</call>')],
        ),
        (
            KEPT,
            {"content": "<think>Hm.</think>", "tool_calls": [CALL]},
            [("T", "<think>Hm."), ("A", "</think>"), ("C", '\n<call>find {"what": "mules"}</call>')],
        ),
        (
            KEPT,
            {
                "content": "",
                "tool_calls": [{"type": "function", "function": {"name": "x", "arguments": {"q": "</think>"}}}],
            },
            [("C", '\n<call>x {"q": "</think>"}</call>')],
        ),
    ],
)
def test_what_belongs_to_what(template: str, message: dict[str, Any], expected: list[tuple[str, str]] | None) -> None:
    renderer = renderer_of(template)
    assert said(renderer, message) == [*(expected or [("A", "Yes.")]), ("E", "<|im_end|>")]
    early = [(letter.lower(), text) for letter, text in [*(expected or [("A", "Yes.")]), ("E", "<|im_end|>")]]
    assert said(renderer, message, {"content": "End."}) == [*early, ("A", "End."), ("E", "<|im_end|>")]


@pytest.mark.parametrize("content", ["<think>a<think>b</think>c</think>d", "a<think>b</think>c", "</think>a</think>b"])
def test_further_thoughts_are_not_guessed(content: str) -> None:
    answer: Messages = [{"role": "assistant", "content": content}]
    assert renderer_of(kit.CHATML)([{"role": "user", "content": "?"}], answer).unproved


def test_a_thought_that_cannot_be_followed_is_not_guessed() -> None:
    """Tags of the data become something else."""
    write = "message.content | replace('<think>', '(') | replace('</think>', ')')"
    template = kit.CHATML.replace("message.content", f"({write} if message.role == 'assistant' else message.content)")
    message: dict[str, Any] = {"role": "assistant", "content": "<think>Hm.</think>Yes."}
    assert renderer_of(template)([{"role": "user", "content": "?"}], [message]).unproved


@pytest.mark.parametrize(
    "write",
    [
        # What stands before an answer is not written without it.
        "{% if m.role == 'assistant' %}{{ messages[loop.index0 - 1].content + ':' + m.content + '</s>' }}{% endif %}",
        # An answer has no end while another one is asked for.
        "{{ m.content }}{% if m.role == 'assistant' and not add_generation_prompt %}</s>{% endif %}",
    ],
)
def test_turns_with_other_text_before_them_are_not_guessed(write: str) -> None:
    renderer = renderer_of("{% for m in messages %}" + write + "{% endfor %}")
    question = {"role": "user", "content": "?"}
    answer = {"role": "assistant", "content": "Yes."}
    assert renderer([question], [answer, question, answer] if "index0" in write else [answer, answer]).unproved


def test_a_completion_that_begins_with_a_question_begins_with_its_message() -> None:
    question = {"role": "user", "content": "?"}
    answer = {"role": "assistant", "content": "Yes."}
    spans = renderer_of(KEPT)([question], [question, answer]).spans
    assert spans.turns[spans.kinds.index(SpanKind.COMPLETION)] == 1
