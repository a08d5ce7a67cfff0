"""Learns what a template does from fixed sample conversations, before any row is rendered."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...schemas.errors import PacktrainError, StoppedTemplateError
from ...schemas.rows import Message, Messages
from .chat_template import REASONING_KEYS
from .generation_prompt import has_fixed_prompt, searched_texts
from .marked import Marker, own
from .tracked_str import CALL, MESSAGE, REASONING, Word

_ASKED: Message = {"role": "user", "content": "a"}
_SAID: Message = {"role": "assistant", "content": "b"}
_AGAIN: Message = {"role": "user", "content": "c"}
_TAG = re.compile(r"\s*(<[^<>\s]*>|\[[^\[\]\s]*\])")
_NEVER = "(?!)"
"""A pattern that finds nothing."""
_CALL_ID = "abcdefghi"
"""Some templates ask for ids of nine letters."""
_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "description": "g",
            "parameters": {"type": "object", "properties": {"h": {"type": "string", "description": "i"}}},
        },
    }
]


@dataclass(frozen=True, slots=True)
class TemplateProfile:
    """Facts about a template."""

    generation: bool
    """Whether the template has `{% generation %}` blocks; if so, they decide."""
    opening: str
    """The generation prompt; "" if the template writes none."""
    searched: frozenset[str] | None
    """None if the generation prompt depends on no message; else the texts that the template looks for in messages."""
    before: str | None
    """What the template writes between the words of an answer that ends a conversation and `ending`; None if that is
    not known."""
    ending: str
    """The special token that ends an answer, with those right after it that the template writes after every answer; ""
    if there is none."""
    call_stop: str
    """The special token after a tool call that ends a conversation; "" if there is none."""
    thought_end: str
    """The first tag that the template writes after the thought of a field; "" if there is none."""
    stops: re.Pattern[str]
    """Finds special tokens."""
    header_stops: re.Pattern[str]
    """If the template writes no token at the end of a turn: finds the special tokens with which what follows a turn may
    begin, such as `<|user|>`. A model that generates one of them has ended its turn."""
    stop: str | None
    """The special token that ends an answer; None if there is none."""
    stop_tokens: tuple[str, ...]
    """The special tokens with which the template's own rendering ends the assistant's turns, wherever they stand."""


def learn_profile(marker: Marker, special: Sequence[str], others: Sequence[str]) -> TemplateProfile:
    """What the template does with a question and an answer, with a further question, and with a tool call. What it
    refuses, only rows can show.

    Args:
        special: the tokenizer's special tokens.
        others: its other added tokens, in case the template ends turns with one of them.
    """
    template, tree, closing = marker.template, marker.tree, None
    special = [*special, *(v for k, v in template.variables.items() if k.endswith("_token") and isinstance(v, str))]
    stops = stop_pattern(special)
    alone, _ = _rendered(marker, [_ASKED], None)
    opened, _ = _rendered(marker, [_ASKED], None, open_turn=True)
    said, words = _rendered(marker, [_ASKED, _SAID], None)
    if words:
        closing = said[max(end for _, end, _ in words) :]
        more = stop_pattern((*others, *special))
        stops = more if more.search(closing) and not stops.search(closing) else stops
    ending = _ending(marker, stops, closing or "")
    call_stop = _call_stop(marker, stops, ending)
    headers = set() if closing is None or ending or call_stop else set(_header_stops(marker, stops))
    last = {token for found in (ending, call_stop) for token in stops.findall(found)[-1:]}
    return TemplateProfile(
        generation=template.marks_generation,
        opening=opened.removeprefix(alone) if opened.startswith(alone) else "",
        searched=None if has_fixed_prompt(tree) else searched_texts(tree),
        before=closing.partition(ending)[0] if closing and ending else closing,
        ending=ending,
        call_stop=call_stop,
        thought_end=_thought_end(marker),
        stops=stops,
        header_stops=stop_pattern(headers),
        stop=next(iter(stops.findall(ending)), None),
        stop_tokens=tuple(sorted(headers | last)),
    )


def stop_pattern(tokens: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that finds the first of some tokens; of two at the same place it takes the longer."""
    found = sorted({token for token in tokens if token.strip()}, key=lambda token: (-len(token), token))
    return re.compile("|".join(map(re.escape, found)) if found else _NEVER)


def _rendered(
    marker: Marker, messages: Messages, tools: list[dict[str, Any]] | None = _TOOLS, *, open_turn: bool = False
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
    text, words = _rendered(marker, [_ASKED, _SAID | dict.fromkeys(REASONING_KEYS, "c")], None)
    ends = [high for low, high, code in words[1:] if code & REASONING and text[low:high] == "c"]
    tag = _TAG.match(text, ends[0]) if ends else None
    return tag[1] if tag is not None else ""


def _calls() -> Iterator[Message]:
    """Return an assistant's message with a call, in the forms that templates ask for."""
    for arguments in ({"h": "b"}, '{"h": "b"}'):
        call = {"id": _CALL_ID, "type": "function", "function": {"name": "f", "arguments": arguments}}
        yield {"role": "assistant", "content": "", "tool_calls": [call]}
        yield {"role": "assistant", "tool_calls": [call]}


def _ending(marker: Marker, stops: re.Pattern[str], closing: str) -> str:
    """The special token that ends an answer, with those right after it that stand there after earlier answers too."""
    first = stops.search(closing)
    if first is None:
        return ""
    text, words = _rendered(marker, [_ASKED, _SAID, _AGAIN], None)
    done = max((end for _, end, code in words if code >> MESSAGE == 1), default=len(text))
    end = first.end()
    while (more := stops.match(closing, end)) is not None and text.startswith(closing[: more.end()], done):
        end = more.end()
    return closing[first.start() : end]


def _call_stop(marker: Marker, stops: re.Pattern[str], ending: str) -> str:
    """The special token that ends a turn with a tool call at the end of a conversation; "" if there is none.

    It is what ends an answer, if that comes after the call; else the last one, because the text that closes a call may
    have special tokens too.
    """
    for said in _calls():
        text, words = _rendered(marker, [_ASKED, said])
        if words and words[-1][2] & CALL:
            done = words[-1][1]
            return ending if ending and ending in text[done:] else next(reversed(stops.findall(text, done)), "")
    return ""


def _header_stops(marker: Marker, stops: re.Pattern[str]) -> Iterator[str]:
    """Yield the special tokens with which the message after a turn begins, for a template that ends no turn itself."""
    answer: Message = {"role": "tool", "content": "c", "tool_call_id": _CALL_ID, "name": "f"}
    for said, then in ((_SAID, _AGAIN), *((said, answer) for said in _calls())):
        text, words = _rendered(marker, [_ASKED, said, then])
        done = max((end for _, end, code in words if code >> MESSAGE == 1), default=None)
        high = min((begin for begin, _, code in words if code >> MESSAGE == 2), default=None)
        if done is not None and high is not None and (found := stops.search(text, done, high)) is not None:
            yield found.group()
