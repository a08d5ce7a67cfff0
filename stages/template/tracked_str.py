"""A string that remembers which of its characters came from which message.

C code treats a `TrackedStr` as the plain string when it reads, compares or hashes it, so tracking does not change the
rendering. Results of the methods below keep the origin; any other operation (such as `%`, or a filter written in C)
gives a plain string. So an origin can be lost, but is never wrong.
"""

from collections.abc import Iterable
from itertools import accumulate
from typing import Any, Self, SupportsIndex, TypeAlias

from markupsafe import Markup

Word: TypeAlias = tuple[int, int, int]
"""(begin, end, code) in characters. The code says where the text came from: `code_of`, or GENERATION."""
GENERATION = -1
"""The code of a stretch written by a `{% generation %}` block."""
MESSAGE = 16
"""A code is a message's index, shifted left by this many bits, plus the number of the part and its kind."""
CALL, REASONING, TAGGED = 1, 2, 4
"""Kinds of words: of a tool call; of a thought in a field or part of its own; of a thought between tags in a content. 0
is a content."""
_PART = 3
_MAX_PARTS = (1 << (MESSAGE - _PART)) - 1


def code_of(index: int, part: int = 0, kind: int = 0) -> int:
    """The code of words of a message.

    Args:
        part: number of the tool call, from 1; 0 for all of them as one text, and for what is none.
        kind: CALL, REASONING, TAGGED, or 0 for content.
    """
    return index << MESSAGE | min(part, _MAX_PARTS) << _PART | kind


def part_of(code: int) -> int:
    """Number of the tool call that a code belongs to; 0 for all of them."""
    return code >> _PART & _MAX_PARTS


class TrackedStr(str):
    """A string with the origin of its words. Words may be unsorted, and a word of GENERATION may contain others.

    Args:
        words: none by default, because jinja2's sandbox makes what `format` returns of a text like this one.
    """

    __slots__ = ("_words",)

    _words: tuple[Word, ...]

    def __new__(cls, text: str, words: tuple[Word, ...] = ()) -> Self:
        self = str.__new__(cls, text)
        self._words = words
        return self

    def __str__(self) -> str:
        return self

    def __add__(self, other: Any) -> Any:
        if type(other) is str:
            return type(self)(str.__add__(self, other), self._words)
        return join((self, other)) if type(other) is type(self) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return join((other, self)) if type(other) is str else NotImplemented

    def __getitem__(self, index: Any) -> str:
        text = str.__getitem__(self, index)
        if type(index) is not slice or index.step not in (None, 1):
            return text
        low, high, _ = index.indices(len(self))
        return self._part(text, low, max(low, high))

    def strip(self, chars: str | None = None, /) -> str:
        """`str.strip`."""
        text = str.strip(self, chars)
        low = len(self) - len(str.lstrip(self, chars)) if text else 0
        return self._part(text, low, low + len(text))

    def lstrip(self, chars: str | None = None, /) -> str:
        """`str.lstrip`."""
        text = str.lstrip(self, chars)
        return self._part(text, len(self) - len(text), len(self))

    def rstrip(self, chars: str | None = None, /) -> str:
        """`str.rstrip`."""
        text = str.rstrip(self, chars)
        return self._part(text, 0, len(text))

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        """`str.split`."""
        # Each part is found after the one before it and the separator; one of white space is in no part.
        done, out = 0, list[str]()
        for text in str.split(self, sep, maxsplit):
            low = str.index(self, text, done)
            out.append(self._part(text, low, low + len(text)))
            done = low + len(text) + len(sep or "")
        return out

    def replace(self, *args: Any) -> str:
        """`str.replace`, which keeps the origin if that is one message."""
        text, code = str.replace(self, *args), owner_of(self)
        return text if code is None else owned(text, code)

    def _part(self, text: str, low: int, high: int) -> str:
        """Return the characters low..high, which equal `text`, with their words."""
        if high - low == len(self):
            return self
        words = self._words
        kept = [
            (max(a, low) - low, min(b, high) - low, code)
            for a, b, code in words
            if (a < high and b > low) or (a == b and low <= a <= high)
        ]
        if not kept and low == high:  # what is left of a content may be empty
            kept = [(0, 0, code) for a, b, code in words if a <= low <= b and code >= 0][-1:]
        return TrackedStr(text, tuple(kept)) if kept else str(text)


class TrackedMarkup(Markup):
    """What the filter `safe` gives, with the origin of its words: a `Markup`, which escapes what is joined to it.

    Operations that are not defined here give a `Markup` without an origin.
    """

    __slots__ = ("_words",)

    _words: tuple[Word, ...]

    def __new__(cls, text: Any = "", words: tuple[Word, ...] = ()) -> Self:
        self = super().__new__(cls, text)
        self._words = words
        return self

    def __str__(self) -> str:
        return TrackedStr(str.__str__(self), self._words)

    def __add__(self, other: Any) -> Any:
        return _marked(join((str(self), _escaped(other)))) if isinstance(other, str) else super().__add__(other)

    def __radd__(self, other: Any) -> Any:
        return _marked(join((_escaped(other), str(self)))) if isinstance(other, str) else super().__radd__(other)

    def strip(self, chars: str | None = None, /) -> Self:
        """`Markup.strip`."""
        return _marked(str(self).strip(chars))  # type: ignore[return-value]

    def lstrip(self, chars: str | None = None, /) -> Self:
        """`Markup.lstrip`."""
        return _marked(str(self).lstrip(chars))  # type: ignore[return-value]

    def rstrip(self, chars: str | None = None, /) -> Self:
        """`Markup.rstrip`."""
        return _marked(str(self).rstrip(chars))  # type: ignore[return-value]


def safe(value: Any) -> Markup:
    """The filter `safe`, which keeps the words of a text."""
    return _marked(value) if isinstance(value, TrackedStr | TrackedMarkup) else Markup(value)


def _marked(text: str) -> TrackedMarkup:
    return TrackedMarkup(str.__str__(text), words_of(text))


def _escaped(text: str) -> str:
    """A text as `Markup` joins it; its words are kept if it has nothing to escape."""
    escaped = str.__str__(Markup.escape(text))
    return str(text) if escaped == text else escaped


def owned(text: str, code: int) -> TrackedStr:
    """Return a text that came from one place."""
    return TrackedStr(text, ((0, len(text), code),))


def owner_of(text: Any) -> int | None:
    """The code of a tracked string that came from one place, else None."""
    if type(text) not in (TrackedStr, TrackedMarkup):
        return None
    codes = {code for _, _, code in text._words}
    whole = sum(high - low for low, high, _ in text._words) == len(text)
    return codes.pop() if whole and len(codes) == 1 else None


def words_of(text: str) -> tuple[Word, ...]:
    """The words of a text; empty for a plain string."""
    return text._words if isinstance(text, TrackedStr | TrackedMarkup) else ()


def join(pieces: Iterable[Any], separator: str = "") -> str:
    """`separator.join` that keeps the words."""
    parts = list(pieces)
    text, gap = separator.join(parts), len(separator)
    places = accumulate([size + gap for size in map(str.__len__, parts)], initial=0)
    tracked = [
        (part, place)
        for part, place in zip(parts, places, strict=False)
        if isinstance(part, TrackedStr | TrackedMarkup)
    ]
    words = [(low + place, high + place, code) for part, place in tracked for low, high, code in part._words]
    if not words:
        return text
    kind = type(tracked[0][0])
    return kind(text, tuple(words)) if issubclass(kind, TrackedStr) else TrackedStr(text, tuple(words))
