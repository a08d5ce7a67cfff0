"""Learns what a template does from fixed sample conversations and its source, before any row is rendered."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import nodes

from ...schemas.errors import PacktrainError, StoppedTemplateError
from ...schemas.rows import Messages
from .chat_template import REASONING_KEYS
from .gaps import ANSWER, RESULT, TOOLS, USER, TemplateGaps, calls, stop_pattern
from .marked import Marker, own
from .tracked_str import MESSAGE, REASONING, Word

_AGAIN = {"role": "user", "content": "c"}
_TAG = re.compile(r"\s*(<[^<>\s]*>|\[[^\[\]\s]*\])")


@dataclass(frozen=True, slots=True)
class TemplateProfile:
    """Facts about a template."""

    generation: bool
    """Whether the template has `{% generation %}` blocks; if so, they decide."""
    opening: str
    """The generation prompt; "" if the template writes none."""
    searched: frozenset[str] | None
    """None if the generation prompt depends on no message; else the texts that the template looks for in messages."""
    thought_end: str
    """The first tag that the template writes after the thought of a field; "" if there is none."""
    stops: re.Pattern[str]
    """Finds special tokens."""
    gaps: TemplateGaps
    """What it writes around messages."""
    header_stops: re.Pattern[str]
    """If the template writes no token at the end of a turn: finds the special tokens with which what follows a turn may
    begin, such as `<|user|>`. A model that generates one of them has ended its turn."""
    stop: str | None
    """The special token that ends an answer; None if there is none."""
    stop_tokens: tuple[str, ...]
    """The special tokens with which the template's own rendering ends the assistant's turns, wherever they stand."""


def learn_profile(
    marker: Marker, special: Sequence[str], others: Sequence[str], generation_stops: Sequence[str] = ()
) -> TemplateProfile:
    """What the template does with a question and an answer, with a further question, and with a tool call. What it
    refuses, only rows can show.

    Args:
        special: the tokenizer's special tokens.
        others: its other added tokens, in case the template ends turns with one of them.
        generation_stops: the tokens at which a generation with this model stops, as far as that is known.
    """
    template, tree = marker.template, marker.tree
    special = [*special, *(v for k, v in template.variables.items() if k.endswith("_token") and isinstance(v, str))]
    gaps = TemplateGaps(marker, stop_pattern(special), generation_stops)
    more = stop_pattern([*others, *special])
    if any(more.search(closing) and not gaps.stops.search(closing) for closing in gaps.answer_closings[:1]):
        gaps = TemplateGaps(marker, more, generation_stops)
    alone, _ = _rendered(marker, [USER], None)
    opened, _ = _rendered(marker, [USER], None, open_turn=True)
    answers, called = _last_stops(gaps, gaps.answer_closings), _last_stops(gaps, gaps.call_closings)
    headers = set() if not gaps.answer_closings or answers or called else set(_header_stops(marker, gaps.stops))
    return TemplateProfile(
        generation=template.marks_generation,
        opening=(opened.removeprefix(alone) if opened.startswith(alone) else "") or gaps.opening,
        searched=None if has_fixed_prompt(tree) else searched_texts(tree),
        thought_end=_thought_end(marker),
        stops=gaps.stops,
        gaps=gaps,
        header_stops=stop_pattern(headers),
        stop=next(iter(answers), None),
        stop_tokens=tuple(sorted({*answers, *called, *headers})),
    )


def _last_stops(gaps: TemplateGaps, closings: Sequence[str]) -> list[str]:
    """The special tokens at which turns with these ends at the text's end close."""
    ends = [gaps.end_of_text(closing) or "" for closing in closings]
    spans = [gaps.closing_span(end) for end in ends]
    tokens = (gaps.stops.findall(end, *span)[-1:] for end, span in zip(ends, spans, strict=True))
    return list(dict.fromkeys(token for found in tokens for token in found))


def _rendered(
    marker: Marker, messages: Messages, tools: list[dict[str, Any]] | None = TOOLS, *, open_turn: bool = False
) -> tuple[str, list[Word]]:
    """The text of messages, with a generation prompt if asked for, and its words; no text if the template refuses
    them.
    """
    try:
        marked = marker.render(own(messages).chat, tools, add_generation_prompt=open_turn)
    except StoppedTemplateError:
        raise
    except PacktrainError:
        return "", []
    return marked.text, [word for word in marked.words if word[2] >= 0]


def _thought_end(marker: Marker) -> str:
    """The first tag after the thought of a last answer; "" if there is none."""
    text, words = _rendered(marker, [USER, ANSWER | dict.fromkeys(REASONING_KEYS, "c")], None)
    ends = [high for low, high, code in words[1:] if code & REASONING and text[low:high] == "c"]
    tag = _TAG.match(text, ends[0]) if ends else None
    return tag[1] if tag is not None else ""


def _header_stops(marker: Marker, stops: re.Pattern[str]) -> Iterator[str]:
    """Yield the special tokens with which the message after a turn begins, for a template that ends no turn itself."""
    for message, then in ((ANSWER, _AGAIN), *((call, RESULT) for call in calls())):
        text, words = _rendered(marker, [USER, message, then])
        done = max((end for _, end, code in words if code >> MESSAGE == 1), default=None)
        high = min((begin for begin, _, code in words if code >> MESSAGE == 2), default=None)
        if done is not None and high is not None and (found := stops.search(text, done, high)) is not None:
            yield found.group()


# What the generation prompt depends on


_SWITCH = "add_generation_prompt"
_OF_A_ROW = frozenset({"messages", "tools", "documents", "loop", "caller", "varargs", "kwargs", "self"})
"""Names whose values differ between rows, besides those that the template itself sets."""


def has_fixed_prompt(tree: nodes.Template) -> bool:
    """Whether the generation prompt is the same after every conversation: the switch is used only in conditions at the
    template's top level, whose text depends on nothing but the configuration's variables.
    """
    branches = [node for node in tree.body if isinstance(node, nodes.If) and _uses(node.test)]
    if sum(map(_uses, branches)) != _uses(tree):
        return False  # it is used elsewhere, too: in a loop or an assignment
    of_rows = _OF_A_ROW | _assigned(tree)
    return not any(name.name in of_rows for branch in branches for name in _names(branch))


def searched_texts(tree: nodes.Template) -> frozenset[str]:
    """The literals that a template looks for, such as `/no_think` in `'/no_think' in message.content`: in two contents
    that both lack one, or both contain it, the template sees the same of it.
    """
    return frozenset(_searched(tree))


def _searched(tree: nodes.Template) -> Iterator[str]:
    values: list[nodes.Node] = []
    for comparison in tree.find_all(nodes.Compare):
        if any(operand.op in ("in", "notin") for operand in comparison.ops):
            values.append(comparison.expr)
    for call in tree.find_all(nodes.Call):
        values += call.args
    for applied in tree.find_all(nodes.Filter):
        values += applied.args
    yield from (value.value for value in values if isinstance(value, nodes.Const) and isinstance(value.value, str))


def _names(node: nodes.Node) -> Iterator[nodes.Name]:
    """The names in a part of a template."""
    yield from [node] if isinstance(node, nodes.Name) else node.find_all(nodes.Name)


def _uses(node: nodes.Node) -> int:
    """How often a part of a template uses the switch."""
    return sum(name.name == _SWITCH for name in _names(node))


def _assigned(tree: nodes.Template) -> set[str]:
    """The names to which a template gives values."""
    stored = {name.name for name in tree.find_all(nodes.Name) if name.ctx != "load"}
    return stored | {macro.name for macro in tree.find_all(nodes.Macro)}
