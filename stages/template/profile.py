"""Learns what a template does from fixed sample conversations, before any row is rendered."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ...schemas.errors import PacktrainError, StoppedTemplateError
from ...schemas.rows import Message, Messages
from .assistant_turns import TemplateProfile, stop_pattern
from .chat_template import REASONING_KEYS
from .marked import Marker
from .owned import own
from .tracked_str import CALL, MESSAGE, REASONING, Word

_ASKED: Message = {"role": "user", "content": "a"}
_SAID: Message = {"role": "assistant", "content": "b"}
_AGAIN: Message = {"role": "user", "content": "c"}
_TAG = re.compile(r"\s*(<[^<>\s]*>|\[[^\[\]\s]*\])")
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


def learn_profile(marker: Marker, stops: Sequence[str], others: Sequence[str]) -> TemplateProfile:
    """What the template does with a question and an answer, with a further question, and with a tool call. What it
    refuses, only rows can show.

    Args:
        stops: the tokenizer's special tokens.
        others: its other added tokens, in case the template ends turns with one of them.
    """
    template, opening, closing = marker.template, "", None
    special = [v for k, v in template.variables.items() if k.endswith("_token") and isinstance(v, str)]
    found = stop_pattern((*stops, *special))
    alone, opened = _rendered(marker, [_ASKED], None), _rendered(marker, [_ASKED], None, open_turn=True)
    if alone is not None and opened is not None:
        if opened[0].startswith(alone[0]):
            opening = opened[0][len(alone[0]) :]
        said = _rendered(marker, [_ASKED, _SAID], None)
        if said is not None and said[1]:
            closing = said[0][max(end for _, end, _ in said[1]) :]
            if found is None or not found.search(closing):
                more = stop_pattern((*others, *stops, *special))
                found = more if more is not None and more.search(closing) else found
    ending = _ending(marker, found, closing) if found is not None and closing else ""
    call_stop = _call_stop(marker, found, ending)
    header_stops: tuple[str, ...] = ()
    if found is not None and closing is not None and not ending and not call_stop:
        header_stops = tuple(sorted(set(_header_stops(marker, found))))
    return TemplateProfile(
        opening=opening,
        before=closing.partition(ending)[0] if closing and ending else closing,
        stops=found,
        generation=template.marks_generation,
        thought_end=_thought_end(marker),
        call_stop=call_stop,
        header_stops=header_stops,
        ending=ending,
    )


def ending_tokens(manner: TemplateProfile) -> tuple[str, ...]:
    """The special tokens with which a template ends the assistant's turns, wherever they stand."""
    own = set(manner.header_stops)
    if (stops := manner.stops) is not None:
        for ending in (manner.ending, manner.call_stop):
            own.update([found.group() for found in stops.finditer(ending)][-1:])
    return tuple(sorted(own))


def _thought_end(marker: Marker) -> str:
    """The first tag after the thought of a last answer; "" if there is none."""
    text, words = _rendered(marker, [_ASKED, _SAID | dict.fromkeys(REASONING_KEYS, "c")], None) or ("", [])
    ends = [high for low, high, code in words[1:] if code & REASONING and text[low:high] == "c"]
    tag = _TAG.match(text, ends[0]) if ends else None
    return tag[1] if tag is not None else ""


def _rendered(
    marker: Marker, messages: Messages, tools: list[dict[str, Any]] | None = _TOOLS, *, open_turn: bool = False
) -> tuple[str, list[Word]] | None:
    """The text of messages and its words; None if the template refuses them.

    Args:
        open_turn: with a generation prompt.
    """
    try:
        marked = marker.render(own(messages).chat, marker.tools(tools), add_generation_prompt=open_turn)
    except StoppedTemplateError:
        raise
    except PacktrainError:
        return None
    return marked.text, [word for word in marked.words if word[2] >= 0]


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
    made = _rendered(marker, [_ASKED, _SAID, _AGAIN], None)
    done = max((end for _, end, code in made[1] if code >> MESSAGE == 1), default=0) if made is not None else 0
    between = made[0][done:] if made is not None and done else ""
    end = first.end()
    while (more := stops.match(closing, end)) is not None and between.startswith(closing[: more.end()]):
        end = more.end()
    return closing[first.start() : end]


def _call_stop(marker: Marker, stops: re.Pattern[str] | None, ending: str) -> str:
    """The special token that ends a turn with a tool call at the end of a conversation; "" if there is none.

    It is what ends an answer, if that comes after the call; else the last one, because the text that closes a call may
    have special tokens too.

    Args:
        ending: see `TemplateProfile`.
    """
    if stops is None:
        return ""
    for said in _calls():
        made = _rendered(marker, [_ASKED, said])
        if made is None or not made[1] or not made[1][-1][2] & CALL:
            continue
        done = made[1][-1][1]
        if ending and made[0].find(ending, done) >= 0:
            return ending
        tail = [found.group() for found in stops.finditer(made[0], done)]
        return tail[-1] if tail else ""
    return ""


def _header_stops(marker: Marker, stops: re.Pattern[str]) -> Iterator[str]:
    """Yield the special tokens with which the message after a turn begins, for a template that ends no turn itself."""
    answer: Message = {"role": "tool", "content": "c", "tool_call_id": _CALL_ID, "name": "f"}
    for said, then in ((_SAID, _AGAIN), *((said, answer) for said in _calls())):
        made = _rendered(marker, [_ASKED, said, then])
        if made is None:
            continue
        text, words = made
        done = max((end for _, end, code in words if code >> MESSAGE == 1), default=None)
        high = min((begin for begin, _, code in words if code >> MESSAGE == 2), default=None)
        if done is None or high is None:
            continue
        found = stops.search(text, done, high)
        if found is not None:
            yield found.group()
