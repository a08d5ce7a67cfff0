"""Limits for templates, which are somebody else's code: time, and the size of what they make.

Two guards work together. What a single operation could make huge (`'a' * 10**10`, `'%9999999999d'`, `center`, `join`)
is weighed here, before it is done. What is slower than that is ended by a watch, which only a process can have: see
`pipeline.watchdog`.
"""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, TypeAlias

MAX_CHARACTERS = 1 << 28
"""That a rendering, or a string on the way to it, may have."""
_MAX_WIDTH = 1_000_000
_MAX_INDENT = 64
_MAX_BITS = 100_000
_MAX_COMPUTED = 10_000
_WIDTH = re.compile(r"%[^%a-zA-Z]*\d{7}|\{[^{}]*:[^{}]*\d{7}")
_COMPUTED_WIDTH = re.compile(r"%[^%a-zA-Z]*\*|\{[^{}]*:[^{}]*\{")
"""`'%*d' % (10**9, 1)` and `'{:{}}'.format(1, 10**9)`."""


class TemplateLimitError(Exception):
    """A template took too long or made too much. Never leaves `ChatTemplate`, which names the template."""


Watch: TypeAlias = Callable[[], AbstractContextManager[None]]
"""Opens a context that ends what takes too long with `TemplateLimitError`."""

_watches: list[Watch] = []


def watch_by(watch: Watch | None) -> None:
    """Have every rendering of this process watched: a stage knows no clock. None takes the watch away."""
    _watches[:] = [] if watch is None else [watch]


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """What runs inside is watched, if somebody watches.

    Raises:
        TemplateLimitError: it took too long, or grew too much; or memory ran out, or it nested too deeply.
    """
    try:
        with _watches[0]() if _watches else contextlib.nullcontext():
            yield
    except MemoryError as error:
        raise TemplateLimitError("it asked for more memory than there is") from error
    except RecursionError as error:
        raise TemplateLimitError("it nests too deeply, or without end") from error


def require_size(characters: int) -> None:
    """Refuse a string that would be too long."""
    if characters > MAX_CHARACTERS:
        raise TemplateLimitError(f"it makes a text of more than {MAX_CHARACTERS >> 20} Mi characters")


def concat(pieces: Iterable[str]) -> str:
    """`"".join` of what is not too much."""
    parts = list(pieces)
    require_size(sum(map(len, parts)))
    return "".join(parts)


WEIGHED = frozenset(
    {"replace", "center", "ljust", "rjust", "zfill", "expandtabs", "join", "translate", "format", "format_map"}
)
"""Methods of strings that can make much of little."""
BINOPS = frozenset({"*", "**", "%"})
"""Operators that are weighed before they are done."""


def require_operation(operator: str, left: Any, right: Any) -> None:
    """Refuse an operation whose result would be huge.

    Raises:
        TemplateLimitError: it would.
    """
    if operator == "*":
        for one, other in ((left, right), (right, left)):
            if isinstance(one, (str, list, tuple)) and isinstance(other, int):
                require_size(len(one) * max(int(other), 0))
    if operator == "%":
        if isinstance(left, str):
            _require_format(left, right)
    elif isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length()
        if (bits * abs(right) if operator == "**" else bits + right.bit_length()) > _MAX_BITS:
            raise TemplateLimitError("it computes with numbers of thousands of digits")


def require_call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse a call of a string's method whose result would be huge. Anything else passes.

    Raises:
        TemplateLimitError: it would.
    """
    name = getattr(function, "__name__", "")
    # The sandbox puts a function of its own around `format`.
    subject = getattr(getattr(function, "__wrapped__", function), "__self__", None)
    if not isinstance(subject, str):
        return
    if name == "replace" and len(args) > 1 and isinstance(args[0], str) and isinstance(args[1], str):
        if len(args[1]) * (len(subject) + 1) > MAX_CHARACTERS:
            require_size(len(subject) + subject.count(args[0]) * len(args[1]))
    elif name in ("center", "ljust", "rjust", "zfill", "expandtabs"):
        _require_widths(len(subject) if name == "expandtabs" else 1, *args, *kwargs.values())
    elif name == "join" and args:
        if not isinstance(args[0], (list, tuple, str, range, dict)):
            raise TemplateLimitError("it joins something whose size cannot be told")
        require_size(len(subject) * len(args[0]) + sum(len(item) for item in args[0] if isinstance(item, str)))
    elif name == "translate":
        require_size(len(subject) * max([len(v) for v in dict(args[0]).values() if isinstance(v, str)], default=1))
    elif name in ("format", "format_map"):
        _require_format(subject, args)


def limited_filters(filters: dict[str, Any]) -> None:
    """Put limits around the filters that can make much of little."""
    for name in ("center", "indent", "wordwrap", "batch", "slice", "truncate", "round", "urlize"):
        filters[name] = _narrow(filters[name])
    filters["join"] = _short(filters["join"])
    filters["replace"] = _short_replace(filters["replace"])
    inner = filters["format"]

    @wraps(inner)
    def formatted(value: Any, *args: Any, **kwargs: Any) -> str:
        _require_format(str(value), args or kwargs)
        return str(inner(value, *args, **kwargs))

    filters["format"] = formatted


def require_indent(indent: Any) -> None:
    """Refuse an indentation that is none."""
    if (isinstance(indent, int) and indent > _MAX_INDENT) or (isinstance(indent, str) and len(indent) > _MAX_INDENT):
        raise TemplateLimitError(f"it indents by more than {_MAX_INDENT}")


def _narrow(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        subjects = 2 if hasattr(function, "jinja_pass_arg") else 1
        size = max([len(arg) for arg in args[:subjects] if isinstance(arg, str)], default=1)
        _require_widths(size, *args[subjects:], *kwargs.values())
        return function(*args, **kwargs)

    return wrapper


def _short(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def wrapper(context: Any, value: Any, d: Any = "", attribute: Any = None) -> Any:
        items = value if isinstance(value, (list, tuple, str)) else list(value)
        inner = sum(len(item) if isinstance(item, str) else 64 for item in items)
        require_size(len(str(d)) * len(items) + inner)
        return function(context, items, d, attribute)

    return wrapper


def _short_replace(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def wrapper(context: Any, s: Any, old: Any, new: Any, count: Any = None) -> Any:
        if isinstance(s, str) and isinstance(old, str) and isinstance(new, str):
            size, longer = str.__len__(s), str.__len__(new)  # a symbol of a trace would see `len` as a question
            if longer * (size + 1) > MAX_CHARACTERS:
                require_size(size + str.count(s, old) * longer)
        return function(context, s, old, new, count)

    return wrapper


def _require_widths(size: int, *widths: Any) -> None:
    for width in widths:
        if isinstance(width, int) and width > _MAX_WIDTH:
            raise TemplateLimitError(f"it asks for a width of {width:,}")
        if isinstance(width, (int, str)):
            require_size((size + 1) * (width if isinstance(width, int) else len(width)))


def _require_format(text: str, args: Any) -> None:
    values = args if isinstance(args, (tuple, list)) else args.values() if isinstance(args, dict) else (args,)
    computed = any(isinstance(value, int) and abs(value) > _MAX_COMPUTED for value in values)
    if _WIDTH.search(text) or (computed and _COMPUTED_WIDTH.search(text)):
        raise TemplateLimitError("it formats with a width of millions")
