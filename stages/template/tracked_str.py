"""A string that remembers which of its characters came from which message.

A chat template sees contents as `TrackedStr`, so its output says where each of its characters came from. For example, a
template that writes roles in brackets makes this of the question "Hi" (message 0) and the answer "Hello" (message 1):

    [user]Hi
    [assistant]Hello

    SourceSpan(6, 8, origin_of(0))      "Hi"
    SourceSpan(20, 25, origin_of(1))    "Hello"

The template itself wrote what no source span covers.

C code treats a `TrackedStr` as the plain string when it reads, compares or hashes it, so tracking does not change the
rendering. Results of the methods below keep the origin; any other operation (such as `%`, or a filter written in C)
gives a plain string. So an origin can be lost, but is never wrong.
"""

from collections.abc import Iterable
from itertools import accumulate
from typing import Any, NamedTuple, Self, SupportsIndex

from markupsafe import Markup

GENERATION = -1
"""The origin of what a `{% generation %}` block wrote."""
TOOL_CALL = 1
"""The kind of an origin in a tool call."""
REASONING_FIELD = 2
"""The kind of a thought in a field or part of its own, such as `reasoning_content`."""
TAGGED_THOUGHT = 4
"""The kind of a thought between tags in a content. The rest of a content has kind 0."""
THOUGHT = REASONING_FIELD | TAGGED_THOUGHT
"""Both kinds of thoughts."""

# The bits of an origin, highest first: index of the message | number of the tool call (13 bits) | kind (3 bits).
_MESSAGE_SHIFT = 16
_CALL_SHIFT = 3
_MAX_CALL = (1 << (_MESSAGE_SHIFT - _CALL_SHIFT)) - 1


def origin_of(message: int, call_number: int = 0, kind: int = 0) -> int:
    """The origin of text that came from a message.

    Args:
        message: index of the message.
        call_number: number of the tool call, from 1; 0 for all calls as one text, and for what is not in a call.
        kind: TOOL_CALL, REASONING_FIELD, TAGGED_THOUGHT, or 0 for content.
    """
    if call_number > _MAX_CALL:
        call_number = _MAX_CALL  # calls beyond 8,191 share a number: their texts are then looked for together
    return message << _MESSAGE_SHIFT | call_number << _CALL_SHIFT | kind


def message_of(origin: int) -> int:
    """Index of the message that an origin names; -1 for GENERATION."""
    return origin >> _MESSAGE_SHIFT


def call_number_of(origin: int) -> int:
    """Number of the tool call that an origin names; 0 for all of them."""
    return origin >> _CALL_SHIFT & _MAX_CALL


class SourceSpan(NamedTuple):
    """A stretch of text that came from one place of a message, in characters."""

    begin: int
    end: int
    """One past its last character. Equal to `begin` where an empty content was written."""
    origin: int
    """`origin_of` its place, or GENERATION."""

    @property
    def message(self) -> int:
        """Index of its message; -1 for GENERATION."""
        return self.origin >> _MESSAGE_SHIFT


class TrackedStr(str):
    """A string with its source spans. They may be unsorted, and one of GENERATION may contain others.

    Args:
        spans: none by default, because jinja2's sandbox calls this type with a text alone to return what `format` made.
    """

    __slots__ = ("_spans",)

    _spans: tuple[SourceSpan, ...]

    def __new__(cls, text: str, spans: tuple[SourceSpan, ...] = ()) -> Self:
        self = str.__new__(cls, text)
        self._spans = spans
        return self

    def __str__(self) -> str:
        return self

    def __add__(self, right: Any) -> Any:
        # Plain text behind this one moves no span: quicker than a join.
        if type(right) is str:
            return type(self)(str.__add__(self, right), self._spans)
        if type(right) is type(self):
            return join_tracked((self, right))
        return NotImplemented

    def __radd__(self, left: Any) -> Any:
        return join_tracked((left, self)) if type(left) is str else NotImplemented

    def __getitem__(self, index: Any) -> str:
        text = str.__getitem__(self, index)
        # A single character, or every second one: their origin is dropped, which is always safe.
        if type(index) is not slice or index.step not in (None, 1):
            return text
        begin, end, _ = index.indices(len(self))
        return self._substring(text, begin, max(begin, end))

    def strip(self, chars: str | None = None, /) -> str:
        """`str.strip`."""
        text = str.strip(self, chars)
        # What `lstrip` removes is where the result begins. Of a text that becomes empty, `lstrip` removes everything.
        begin = len(self) - len(str.lstrip(self, chars)) if text else 0
        return self._substring(text, begin, begin + len(text))

    def lstrip(self, chars: str | None = None, /) -> str:
        """`str.lstrip`."""
        text = str.lstrip(self, chars)
        return self._substring(text, len(self) - len(text), len(self))

    def rstrip(self, chars: str | None = None, /) -> str:
        """`str.rstrip`."""
        text = str.rstrip(self, chars)
        return self._substring(text, 0, len(text))

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        """`str.split`."""
        # Each part is looked for behind the part before it, and found at its own place at once:
        # - with a separator, it begins right behind that;
        # - without, only white space comes before it, and it begins with another character. So does what is left after
        #   `maxsplit` splits.
        parts: list[str] = []
        search_from = 0
        for text in str.split(self, sep, maxsplit):
            begin = str.index(self, text, search_from)
            parts.append(self._substring(text, begin, begin + len(text)))
            search_from = begin + len(text) + len(sep or "")
        return parts

    def replace(self, *args: Any) -> str:
        """`str.replace`, which keeps the origin if the whole text has one."""
        text = str.replace(self, *args)
        # With several origins, nothing shows where a replacement has moved them.
        origin = sole_origin(self)
        return text if origin is None else tracked(text, origin)

    def _substring(self, text: str, begin: int, end: int) -> str:
        """The characters begin..end, which equal `text`, with their source spans.

        Of a text with the span 2..6, the characters 4..9 have the span 0..2.
        """
        if end - begin == len(self):
            return self
        spans: list[SourceSpan] = []
        for span in self._spans:
            is_empty_inside = span.begin == span.end and begin <= span.begin <= end
            if is_empty_inside or (span.begin < end and span.end > begin):
                spans.append(SourceSpan(max(span.begin, begin) - begin, min(span.end, end) - begin, span.origin))
        if not spans and begin == end:
            # An empty rest of a content, as `strip` leaves of white space, still shows where the content was written.
            # Where two contents meet, one is enough: an empty text has one place.
            touching = [span for span in self._spans if span.begin <= begin <= span.end and span.origin >= 0]
            spans = [SourceSpan(0, 0, span.origin) for span in touching[-1:]]
        return TrackedStr(text, tuple(spans)) if spans else str(text)


class TrackedMarkup(Markup):
    """What the filter `safe` gives, with its source spans: a `Markup`, which escapes what is joined to it.

    Operations that are not defined here give a `Markup` without an origin.
    """

    __slots__ = ("_spans",)

    _spans: tuple[SourceSpan, ...]

    def __new__(cls, text: Any = "", spans: tuple[SourceSpan, ...] = ()) -> Self:
        self = super().__new__(cls, text)
        self._spans = spans
        return self

    def __str__(self) -> str:
        return TrackedStr(str.__str__(self), self._spans)

    def __add__(self, right: Any) -> Any:
        if not isinstance(right, str):
            return super().__add__(right)
        return _as_markup(join_tracked((str(self), _escaped(right))))

    def __radd__(self, left: Any) -> Any:
        if not isinstance(left, str):
            return super().__radd__(left)
        return _as_markup(join_tracked((_escaped(left), str(self))))

    def strip(self, chars: str | None = None, /) -> Self:
        """`Markup.strip`."""
        return _as_markup(str(self).strip(chars))  # type: ignore[return-value]

    def lstrip(self, chars: str | None = None, /) -> Self:
        """`Markup.lstrip`."""
        return _as_markup(str(self).lstrip(chars))  # type: ignore[return-value]

    def rstrip(self, chars: str | None = None, /) -> Self:
        """`Markup.rstrip`."""
        return _as_markup(str(self).rstrip(chars))  # type: ignore[return-value]


_TRACKED = (TrackedStr, TrackedMarkup)


def safe(value: Any) -> Markup:
    """The filter `safe`, which keeps the source spans of a text."""
    return _as_markup(value) if isinstance(value, _TRACKED) else Markup(value)


def _as_markup(text: str) -> TrackedMarkup:
    return TrackedMarkup(str.__str__(text), source_spans_of(text))


def _escaped(text: str) -> str:
    """A text as `Markup` joins it; its source spans are kept if it has nothing to escape."""
    escaped = str.__str__(Markup.escape(text))
    return str(text) if escaped == text else escaped


def tracked(text: str, origin: int) -> TrackedStr:
    """A text that came from one place."""
    return TrackedStr(text, (SourceSpan(0, len(text), origin),))


def sole_origin(text: Any) -> int | None:
    """The origin of a tracked string that came from one place as a whole. None for a plain string, and for one that
    came from several places, or in which the template wrote some characters.
    """
    if type(text) not in _TRACKED:
        return None
    origins: set[int] = {span.origin for span in text._spans}
    tracked_characters = sum(span.end - span.begin for span in text._spans)
    if len(origins) == 1 and tracked_characters == len(text):
        return origins.pop()
    return None


def source_spans_of(text: str) -> tuple[SourceSpan, ...]:
    """The source spans of a text; empty for a plain string."""
    return text._spans if isinstance(text, _TRACKED) else ()


def join_tracked(pieces: Iterable[Any], separator: str = "") -> str:
    """`separator.join` that keeps the source spans of the pieces: of "Hi" and "Hello" with the separator ", ", they are
    0..2 and 4..9.
    """
    parts = list(pieces)
    text = separator.join(parts)
    tracked_parts = [(index, part) for index, part in enumerate(parts) if isinstance(part, _TRACKED)]
    if not tracked_parts:
        return text
    # `str.__len__` instead of `len`, which aborts a trace: see `content_proxy.ContentProxy`.
    begins_without_separators = [0, *accumulate(map(str.__len__, parts))]
    spans: list[SourceSpan] = []
    for index, part in tracked_parts:
        begin = begins_without_separators[index] + index * len(separator)
        if begin == 0:
            spans += part._spans  # they stay where they are: quicker than to build them again
            continue
        spans += [SourceSpan(begin + span.begin, begin + span.end, span.origin) for span in part._spans]
    if not spans:
        return text
    # In a trace, text that contains a placeholder must remain a placeholder.
    first_type = type(tracked_parts[0][1])
    text_type = first_type if issubclass(first_type, TrackedStr) else TrackedStr
    return text_type(text, tuple(spans))
