"""Whether the text of a turn has all parts of its tool calls: their names, and the keys and values of their arguments.

Templates write calls as JSON, as XML, as Python, or as prose, with escapes of their own, so a call as a whole is in no
text. Its parts are, if quotes and white space do not count.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from markupsafe import escape

from ..template.tracked_messages import CALL_KEYS, TrackedMessages, is_blank
from ..template.tracked_str import TOOL_CALL, message_of
from ..template.tracked_template import TrackedRendering

PLAIN_JSON = json.JSONEncoder(ensure_ascii=False)
"""Writes texts as most templates do; `json.dumps` escapes what is not ASCII."""
_QUOTING = re.compile(r"""[\s"'\\]""")


def lost_part_of_calls(tracked: TrackedMessages, message: int, rendering: TrackedRendering) -> str:
    """A name, key or value of a message's calls that its turn does not have as often as the calls do; "" if there is
    none. Booleans and nulls are not looked for: templates write them in many ways.
    """
    # Both are compared without quotes and white space, because templates write arguments as JSON, XML or Python.
    turn_text = _compact(_text_around_calls(message, rendering))
    counts: Counter[str | int | float] = Counter()
    for origin, call in tracked.contents.items():
        if origin & TOOL_CALL and message_of(origin) == message:
            counts.update(_parts_of_call(call))
    for part, count in counts.items():
        # As templates write a part: as text, in JSON, in JSON of ASCII, or with HTML's escapes.
        forms = {
            _compact(str(part)),
            _compact(PLAIN_JSON.encode(part)),
            _compact(json.dumps(part)),
            _compact(escape(part)),
        }
        if "" not in forms and max(map(turn_text.count, forms)) < count:
            return str(part)
    return ""


def _text_around_calls(message: int, rendering: TrackedRendering) -> str:
    """The text from a message's first source span to the next message's: its calls, and what the template wrote, but
    no other contents, in which the same words would prove nothing.

    Of `Let me add.<call>add</call>`, with the content `Let me add.` and the call `add`, this is `<call>add</call>`.
    """
    text = rendering.text
    spans = [span for span in rendering.source_spans if span.origin >= 0]
    places = [place for place, span in enumerate(spans) if span.message == message]
    # Where it has no source span, all that the template writes between spans may be its turn.
    begin = spans[places[0]].begin if places else 0
    end = spans[places[-1] + 1].begin if places and places[-1] + 1 < len(spans) else len(text)
    pieces = []
    piece_begin = begin
    for span in spans:
        is_call = span.origin & TOOL_CALL and span.message == message
        if begin <= span.begin < end and not is_call:
            pieces.append(text[piece_begin : span.begin])
            piece_begin = max(piece_begin, span.end)
    pieces.append(text[piece_begin:end])
    return "".join(pieces)


def _parts_of_call(value: Any, *, is_inside: bool = False) -> Iterator[str | int | float]:
    """The name of a call, and the keys and values of its arguments.

    Args:
        is_inside: whether the value is below one of CALL_KEYS.
    """
    if isinstance(value, list):
        for item in value:
            yield from _parts_of_call(item, is_inside=is_inside)
    elif isinstance(value, dict):
        for key, item in value.items():
            if is_inside:
                yield str(key)
            yield from _parts_of_call(item, is_inside=is_inside or key in CALL_KEYS)
    elif is_inside and isinstance(value, str | int | float) and not isinstance(value, bool):
        yield value


def _compact(text: str) -> str:
    """A text without white space, and without what JSON and Python put around and into texts."""
    return _QUOTING.sub("", text)


def texts_in_call(value: Any, *, is_inside: bool = False) -> Iterator[str]:
    """The texts of the name and the arguments of a tool call, that are more than white space.

    Args:
        is_inside: whether the value is below one of CALL_KEYS.
    """
    if isinstance(value, str):
        if is_inside and not is_blank(value):
            yield value
    elif isinstance(value, list):
        for item in value:
            yield from texts_in_call(item, is_inside=is_inside)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from texts_in_call(item, is_inside=is_inside or key in CALL_KEYS)
