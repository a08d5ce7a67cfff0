"""What is trained under random templates, which are written with `{% generation %}` around what the assistant says, and
without: with the tags it is known, and without them packtrain must train the same, or refuse.

The truth is jinja2's own text with marks in the place of the tags, so it does not depend on packtrain.
"""

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from packtrain.schemas.errors import RowRejectedError
from packtrain.schemas.rows import ASSISTANT_KINDS
from packtrain.stages.render.rendered import Rendered
from packtrain.stages.render.renderer import Renderer
from packtrain.stages.template.chat_template import ChatTemplate

from tests.support.made_templates import (
    SPECIAL,
    VARIABLES,
    Made,
    Row,
    draw_conversation,
    draw_template,
    turns_shown,
)

LOSSES = ("system", "user", "assistant", "tool_calls", "tool_results", "tools")
CHUNKS = 25
"""The slow test's 10,000 pairs of a template and a conversation, in parts that processes share."""


def renderer(source: str, made: Made) -> Renderer:
    template = ChatTemplate(source, VARIABLES, "made")
    return Renderer(template, special_tokens=SPECIAL, allow_lost=LOSSES, generation_stops=made.generation_stops)


def trained(rendered: Rendered) -> bytes:
    """(characters,) whether the mask `assistant` trains each."""
    out, done = bytearray(len(rendered.text)), 0
    for end, kind, train in zip(rendered.spans.ends, rendered.spans.kinds, rendered.spans.weights, strict=True):
        if kind in ASSISTANT_KINDS and train:
            out[done:end] = b"\1" * (end - done)
        done = max(done, end)
    return bytes(out)


def right(text: str, turns: list[tuple[int, int]], messages: list[Row]) -> bytes:
    """The same by the marks."""
    out = bytearray(len(text))
    answers = [message for message in messages if message["role"] == "assistant"]
    for (begin, end), message in zip(turns, answers, strict=True):
        if message.get("train", True):
            out[begin:end] = b"\1" * (end - begin)
    return bytes(out)


def outcomes(seed: str, templates: int, conversations: int) -> Iterator[tuple[str, str]]:
    """("bare" or "tagged", what became of a conversation). Raises AssertionError where other characters are trained."""
    for number in range(templates):
        draw = random.Random(f"{seed}-{number}")
        made = draw_template(draw)
        shown = ChatTemplate(made.shown, VARIABLES, "shown")
        renderers = {"bare": renderer(made.bare, made), "tagged": renderer(made.tagged, made)}
        for _ in range(conversations):
            messages, tools = draw_conversation(draw, made.choices)
            try:
                text, turns = turns_shown(shown.render(messages, tools))
            except RowRejectedError:
                continue  # the template refuses it: roles must alternate
            wanted = right(text, turns, messages)
            for form, render in renderers.items():
                yield form, outcome(render, messages, tools, text, wanted, made)
        assert not sum(render.mismatches for render in renderers.values())


def outcome(render: Renderer, messages: list[Row], tools: Any, text: str, wanted: bytes, made: Made) -> str:
    cut = len(messages) - (messages[-1]["role"] == "assistant")
    try:
        rendered = render(messages[:cut], messages[cut:], tools)
    except RowRejectedError as error:
        return error.reason
    assert rendered.text == text
    if rendered.unproved:
        return "unproved"
    assert trained(rendered) == wanted, (made.choices, messages, tools)
    return "proved"


def check(seed: str, templates: int, conversations: int) -> None:
    counts = Counter(outcomes(seed, templates, conversations))
    rows = sum(count for (form, _), count in counts.items() if form == "bare")
    assert rows >= 0.9 * templates * conversations
    assert counts["bare", "proved"] >= 0.6 * rows
    assert counts["tagged", "proved"] >= 0.8 * rows


def test_labels_of_made_templates() -> None:
    check("quick", 30, 7)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_labels_of_ten_thousand(chunk: int) -> None:
    check(f"slow{chunk}", 50, 400 // 50)
