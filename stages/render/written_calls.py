"""Whether the text of a turn has all parts of its tool calls: their names, and the keys and values of their arguments.

Templates write calls as JSON, as XML, as Python, or as prose, with escapes of their own, so a call as a whole is in no
text. Its parts are, if quotes and white space do not count. Of the call

    {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "note": "to \\"b\\""}}}

the parts are `add`, `a`, 1, `note` and `to "b"`, and `<parameter=note>to \\"b\\"</parameter>` has the last two.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from markupsafe import escape

from ..template.tracked_messages import CALL_KEYS, TrackedMessages
from ..template.tracked_str import TOOL_CALL, message_of
from ..template.tracked_template import TrackedRendering

PLAIN_JSON = json.JSONEncoder(ensure_ascii=False)
"""Writes texts as most templates do; `json.dumps` escapes what is not ASCII."""
_QUOTING = re.compile(r"""[\s"'\\]""")
"""Matches white space, and what JSON and Python put around and into texts."""


def lost_part_of_calls(tracked: TrackedMessages, message: int, rendering: TrackedRendering) -> str:
    """A part of a message's calls that its turn does not have as often as the calls do; "" if there is none."""
    turn_text = _QUOTING.sub("", _text_without_other_contents(message, rendering))
    counts: Counter[str | int | float] = Counter()  # how often the calls have each part
    for origin, call in tracked.contents.items():
        if origin & TOOL_CALL and message_of(origin) == message:
            counts.update(parts_of_call(call))
    for part, count in counts.items():
        # As templates write a part: as text, in JSON, in JSON of ASCII, or with HTML's escapes.
        spellings = {str(part), PLAIN_JSON.encode(part), json.dumps(part), str(escape(part))}
        compact_spellings = {_QUOTING.sub("", spelling) for spelling in spellings}
        # A part of white space and quotes alone leaves nothing to look for. Of the spellings, the one that the turn has
        # most often is taken for the template's.
        if "" not in compact_spellings and max(map(turn_text.count, compact_spellings)) < count:
            return str(part)
    return ""


def _text_without_other_contents(message: int, rendering: TrackedRendering) -> str:
    """The text from a message's first source span to the next message's, without contents that are no calls of the
    message: in these, the words of a call would prove nothing.

    Of `Let me add.<call>add</call>`, with the content `Let me add.` and the call `add`, this is `<call>add</call>`.
    """
    text = rendering.text
    spans = [span for span in rendering.source_spans if span.origin >= 0]
    own_indices = [index for index, span in enumerate(spans) if span.message == message]
    # Without a source span of the message, its turn may be anywhere in what the template writes.
    begin = spans[own_indices[0]].begin if own_indices else 0
    end = len(text)
    if own_indices and own_indices[-1] + 1 < len(spans):
        end = spans[own_indices[-1] + 1].begin
    pieces = []
    piece_begin = begin
    for span in spans:
        is_call = span.origin & TOOL_CALL and span.message == message
        if begin <= span.begin < end and not is_call:
            pieces.append(text[piece_begin : span.begin])
            piece_begin = max(piece_begin, span.end)
    pieces.append(text[piece_begin:end])
    return "".join(pieces)


def parts_of_call(value: Any, *, is_inside: bool = False) -> Iterator[str | int | float]:
    """The name of a call, and the keys and values of its arguments. Booleans and nulls are left out, because templates
    write them in many ways: `true`, `True`, `yes`.

    Args:
        is_inside: whether the value is below one of CALL_KEYS. What is beside these, such as the call's id, is linked
            to by other messages, and no part.
    """
    if isinstance(value, list):
        for item in value:
            yield from parts_of_call(item, is_inside=is_inside)
    elif isinstance(value, dict):
        for key, item in value.items():
            if is_inside:
                yield str(key)
            yield from parts_of_call(item, is_inside=is_inside or key in CALL_KEYS)
    elif is_inside and isinstance(value, str | int | float) and not isinstance(value, bool):
        yield value
