"""A string that stands for the content of a message while a template is traced.

The template sees a string. A `Record` notes what the template does with it: a pure operation (`strip`, `replace`, ...)
makes another value, and an inspection (`in`, `startswith`, truth, ...) is answered from the guiding row's content and
becomes a guard. Anything that cannot be recorded ends the trace with `TraceAbortedError`; nothing is guessed.

Text that contains such strings is kept as a *skeleton*: a `TrackedStr` with one private character per value.

For C code, every symbolic string is the single character MARK. C code that bypasses the methods here carries it into
the text, where `concat` finds it.
"""

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NoReturn, SupportsIndex, TypeAlias

from jinja2.runtime import Undefined

from .environment import require_replaced, require_size
from .tracked_str import join, owned, owner_of

MARK = "\U0010fffd"
"""A private-use character without case, width or meaning: string methods leave it as it is."""
_PLANE = 0xF0000
"""In a skeleton, value n is the character with this code point plus n."""
_MAX_VALUES = 0xFFF0
VALUE = re.compile("([\U000f0000-\U000ffff0])")
"""Matches a value in a skeleton."""
_PRIVATE = re.compile("[\U000f0000-\U0010ffff]")

_STRIPS = frozenset({"strip", "lstrip", "rstrip"})
_INSPECTED = frozenset({"startswith", "endswith", "isspace", "isdigit", "isupper", "islower"})
_DERIVED = _STRIPS | {"upper", "lower", "capitalize", "title", "replace", "removeprefix", "removesuffix"}
UNDERSTOOD = _INSPECTED | _DERIVED | {"split"}
"""The methods of str that a template may call on a content."""
_MAX_LOOKED = 100_000
"""Maximum number of items to search for contents; nested lists may be practically endless."""

Instruction: TypeAlias = tuple[Callable[[Any], Any], int | slice, bool | None]
"""(function, index of its argument or a slice for all values, outcome of a guard or None if it makes a new value)."""


class TraceAbortedError(BaseException):
    """The template does something with a content that cannot be recorded. The renderer catches it.

    Not an `Exception`, so that jinja2 does not catch it.
    """


class Record:
    """What a template did with the contents of one row.

    Args:
        contents: the contents of the guiding row; value i belongs to message i.
    """

    def __init__(self, contents: Sequence[str]) -> None:
        self.values: list[str] = list(contents)
        self.program: list[Instruction] = []
        self.whole = set(range(len(contents)))
        """Values that contain a whole content, except white space around it."""
        self._known: dict[tuple[Any, ...], bool | int] = {}

    def symbol(self, number: int, code: int) -> "SymbolicStr":
        """Return the stand-in for a value that came from one message."""
        if number > _MAX_VALUES:
            raise TraceAbortedError("the template makes too many values")
        return SymbolicStr(self, owned(chr(_PLANE + number), code))

    def inspect(self, skeleton: str, name: str, *args: Any) -> bool:
        """Answer from the guiding row, and record the answer as a guard (once)."""
        return bool(self._done(self._value(skeleton), name, args, guard=True))

    def derive(self, skeleton: str, name: str, *args: Any) -> "SymbolicStr":
        """Record a new value made from another one."""
        code = owner_of(skeleton)
        if code is None or not VALUE.fullmatch(skeleton):
            raise TraceAbortedError(f"`{name}` cannot be traced on a text that mixes contents with other text")
        source = self._value(skeleton)
        made = self._done(source, name, args, guard=False)
        if source in self.whole and name in _STRIPS and all(arg is None or arg.isspace() for arg in args):
            self.whole.add(made)
        return self.symbol(made, code)

    def _value(self, skeleton: str) -> int:
        if VALUE.fullmatch(skeleton):
            return number_of(skeleton)
        return int(self._done(slice(None), "join", (str.__str__(skeleton),), guard=False))

    def _done(self, source: Any, name: str, args: tuple[Any, ...], *, guard: bool) -> int:
        key = (name, args, str(source))
        if key not in self._known:
            function = _operation(name, args)
            result = function(self.values[source])
            self.program.append((function, source, result if guard else None))
            if not guard:
                self.values.append(result)
            self._known[key] = result if guard else len(self.values) - 1
        return self._known[key]


def number_of(character: str) -> int:
    """The number of a value of a skeleton."""
    return ord(character) - _PLANE


def split_skeleton(skeleton: str) -> tuple[list[str], list[int]]:
    """Return the pieces of a skeleton (literals at even indices, values at odd ones) and the values' numbers."""
    pieces = VALUE.split(skeleton)
    return pieces, list(map(number_of, pieces[1::2]))


def _operation(name: str, args: tuple[Any, ...]) -> Callable[[Any], Any]:
    """Return the function that an instruction applies to a value, or to all values.

    The function raises `TemplateLimitError` if the text would be too long.
    """
    if name == "truth":
        return operator.truth
    if name == "within":
        return partial(operator.contains, *args)
    if name == "split":
        return lambda text: text.split(*args[1:])[args[0]]
    if name == "replace":

        def replaced(text: str) -> str:
            require_replaced(text, args[0], args[1])
            return text.replace(*args)

        return replaced
    if name == "join":
        literals, numbers = split_skeleton(args[0])

        def joined(values: list[str]) -> str:
            pieces = literals.copy()
            pieces[1::2] = [values[number] for number in numbers]
            require_size(sum(map(len, pieces)))
            return "".join(pieces)

        return joined
    return operator.methodcaller(name, *args)


class SymbolicStr(str):
    """A content, or text with contents in it, as the template sees it."""

    __slots__ = ("record", "skeleton")

    record: Record
    skeleton: str

    def __new__(cls, record: Record, skeleton: str) -> "SymbolicStr":
        self = super().__new__(cls, MARK)
        self.record = record
        self.skeleton = skeleton
        return self

    def __str__(self) -> str:
        return self

    def __add__(self, other: Any) -> Any:
        return concat((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return concat((other, self)) if isinstance(other, str) else NotImplemented

    def __bool__(self) -> bool:
        if VALUE.sub("", self.skeleton):
            return True
        return bool(self.skeleton) and self.record.inspect(self.skeleton, "truth")

    def __eq__(self, other: object) -> Any:
        if isinstance(other, SymbolicStr):
            if self.skeleton == other.skeleton:
                return True
            raise TraceAbortedError("the template compares two contents")
        if not isinstance(other, str):
            return NotImplemented
        return self.record.inspect(self.skeleton, "__eq__", *_literals((other,)))

    def __ne__(self, other: object) -> Any:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    def __contains__(self, other: Any) -> bool:
        return self.record.inspect(self.skeleton, "__contains__", *_literals((other,)))

    def within(self, text: str) -> bool:
        """Whether this content is a substring of `text`. Without this method, C code would answer `content in
        "literal"`.
        """
        return self.record.inspect(self.skeleton, "within", *_literals((text,)))

    def split(self, sep: Any = None, maxsplit: SupportsIndex = -1) -> Any:
        """Return a result that offers only the first and last item, because these always exist."""
        if sep is None or sep == "":
            raise TraceAbortedError("the template splits a content at whitespace")
        return SymbolicParts(self, _literals((sep, int(maxsplit))))


class SymbolicParts:
    """Stands for the list `content.split(sep)`; a template may take items 0 and -1."""

    def __init__(self, symbol: SymbolicStr, args: tuple[Any, ...]) -> None:
        self._symbol = symbol
        self._args = args

    def __getitem__(self, index: Any) -> SymbolicStr:
        if type(index) is not int or index not in (0, -1):
            raise TraceAbortedError("an item of a split content may not exist")
        return self._symbol.record.derive(self._symbol.skeleton, "split", index, *self._args)

    def _abort(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise TraceAbortedError("the template inspects the parts of a split content")

    __iter__ = __len__ = __bool__ = __contains__ = __eq__ = __ne__ = __hash__ = __str__ = __repr__ = _abort
    __add__ = __radd__ = __mul__ = __reversed__ = _abort


def _stripped(symbol: SymbolicStr, name: str, chars: str | None) -> SymbolicStr:
    """`strip` for a string of several pieces: strips the first and the last piece, if something of them remains."""
    text, record = symbol.skeleton, symbol.record
    for side, edge, rest in (("lstrip", slice(0, 1), slice(1, None)), ("rstrip", slice(-1, None), slice(0, -1))):
        if name not in ("strip", side):
            continue
        text = getattr(text, side)(chars)
        if VALUE.fullmatch(text[edge]):
            made = record.derive(text[edge], side, chars)
            if not made:
                raise TraceAbortedError("a content at the edge of a text is stripped to nothing")
            text = made.skeleton + text[rest] if side == "lstrip" else text[rest] + made.skeleton
    return SymbolicStr(record, text)


def _method(name: str) -> Callable[..., Any]:
    """The `SymbolicStr` version of a str method."""

    def method(self: SymbolicStr, *args: Any, **_kwargs: Any) -> Any:
        if name in _INSPECTED:
            return self.record.inspect(self.skeleton, name, *_literals(args))
        if name not in _DERIVED:
            raise TraceAbortedError(f"`{name}` of a content cannot be traced")
        args = _literals(args)
        if name in _STRIPS and len(self.skeleton) > 1:
            return _stripped(self, name, *(args or (None,)))
        return self.record.derive(self.skeleton, name, *args)

    return method


_PYTHON_NEEDS = {
    *("__new__", "__init__", "__class__", "__getattribute__", "__setattr__", "__delattr__", "__dir__"),
    *("__doc__", "__init_subclass__", "__subclasshook__", "__sizeof__", "__getstate__", "__getnewargs__"),
}
for _name in dir(str):
    # Defining __eq__ sets __hash__ to None.
    if (_name not in SymbolicStr.__dict__ or _name == "__hash__") and _name not in _PYTHON_NEEDS:
        setattr(SymbolicStr, _name, _method(_name))


def concat(pieces: Iterable[str]) -> str:
    """`"".join` that keeps symbolic strings."""
    parts, record = [], None
    for piece in pieces:
        if isinstance(piece, SymbolicStr):
            record = piece.record
            parts.append(piece.skeleton)
        elif type(piece) is str:
            parts.append(*_literals((piece,)))
        else:
            raise TraceAbortedError("the template may join a content with escaped text")
    return "".join(parts) if record is None else SymbolicStr(record, join(parts))


def _literals(args: tuple[Any, ...]) -> tuple[Any, ...]:
    require_literal(args)
    return args


def require_literal(value: Any) -> None:
    """Abort the trace unless a value certainly contains no message content."""
    left = [value]
    seen = 0
    while left:
        value = left.pop()
        if type(value) is str and _PRIVATE.search(value):
            raise TraceAbortedError("a content passed through code that is not traced")
        if value is None or type(value) in (str, int, float, bool) or isinstance(value, Undefined):
            continue
        if type(value) in (list, tuple):
            left.extend(value)
        elif type(value) is dict:
            left.extend(value)
            left.extend(value.values())
        else:
            raise TraceAbortedError("a content may reach a function that is not traced")
        seen += 1 + len(value)
        if seen > _MAX_LOOKED:
            raise TraceAbortedError("a list is too long to be searched for contents")
