"""Limits for templates, which are untrusted code: steps, time, and the size of results.

Counted limits depend on the row alone: an operation that could make something huge (`'a' * 10**10`, `'%9999999999d'`,
`center`, `join`) is checked before it runs, and the steps of loops and calls are counted. A row that exceeds one may be
rejected. Time and memory depend on the machine, so exceeding them is always an error; a watch of the process
(`pipeline.execute.template_watchdog`) enforces them.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, TypeAlias, TypeVar

from jinja2.filters import make_attrgetter

MAX_CHARACTERS = 1 << 28
"""Maximum number of characters of a rendering, or of any string made while rendering."""
MAX_ITEMS = 1 << 22
"""Maximum number of items of a list made by one operation."""
MAX_STEPS = 1 << 24
"""Maximum number of steps of one rendering. A step is one item of a loop, or 128 characters that a method reads."""
_CALL_STEPS = 16
_STEP_BITS = 7
_MAX_WIDTH = 1_000_000
_MAX_INDENT = 64
_MAX_BITS = 100_000
_MAX_COMPUTED = 10_000
_WIDTH = re.compile(r"%[^%a-zA-Z]*\d{7}|\{[^{}]*:[^{}]*\d{7}")
_COMPUTED_WIDTH = re.compile(r"%[^%a-zA-Z]*\*|\{[^{}]*:[^{}]*\{")
"""Matches widths that are arguments: `'%*d' % (10**9, 1)` and `'{:{}}'.format(1, 10**9)`."""

_CHARACTER = re.compile(r"%(\([^)%]*\))?[^%a-zA-Z]*c|\{[^{}]*c\}")
"""Matches conversions of numbers to characters: `'%c' % 65` and `'{:c}'.format(65)`."""


class TemplateLimitError(Exception):
    """A template exceeded a counted limit. `ChatTemplate` catches it and names the template."""


class MachineLimitError(TemplateLimitError):
    """A template took too much time or memory. It depends on the machine, so it never rejects a row."""


Watch: TypeAlias = Callable[[], AbstractContextManager[None]]
"""Opens a context that raises `MachineLimitError` if its body takes too much time or memory."""

Result = TypeVar("Result")
_watches: list[Watch] = []


def watch_by(watch: Watch | None) -> None:
    """Watch every rendering of this process, because a stage has no clock. None removes the watch."""
    _watches[:] = [] if watch is None else [watch]


def limited(body: Callable[[], Result], again: bool = False) -> Result:
    """Call a body under the watch, if there is one, and return its result.

    Args:
        again: whether memory already ran out once; a second time is an error.

    Raises:
        MemoryError: memory ran out, the first time.
        MachineLimitError: the body took too long, grew too much, or memory ran out.
        TemplateLimitError: the template nested too deeply.
    """
    _steps[0] = MAX_STEPS
    try:
        if not _watches:
            return body()
        with _watches[0]():
            return body()
    except MemoryError as error:
        if not again:
            raise
        raise MachineLimitError("it asked for more memory than a rendering may have") from error
    except RecursionError as error:
        raise TemplateLimitError("it nests too deeply, or without end") from error


_steps = [MAX_STEPS]
"""Steps left for the current rendering of this process; renderings are never nested."""


def take_steps(count: int) -> None:
    """Count steps of the current rendering.

    Raises:
        TemplateLimitError: there were too many.
    """
    _steps[0] -= count
    if _steps[0] < 0:
        raise TemplateLimitError(f"it takes more than {MAX_STEPS:,} steps")


def take_products(size: int, *texts: Any) -> None:
    """Count steps of comparing a text of `size` characters with others.

    Raises:
        TemplateLimitError: there were too many.
    """
    for text in texts:
        if isinstance(text, str):
            take_steps(size * str.__len__(text) >> _STEP_BITS)


def counted(iterable: Any) -> Any:
    """The iterable of a loop, with its items counted as steps."""
    try:
        size = len(iterable)
    except TypeError:
        return _counted_one_by_one(iterable)
    take_steps(size)
    return iterable


def _counted_one_by_one(iterable: Any) -> Iterator[Any]:
    for item in iterable:
        take_steps(1)
        yield item


def require_replaced(text: str, old: str, new: str) -> None:
    """Refuse a replacement that would make a text too long."""
    size, longer = str.__len__(text), str.__len__(new)  # `len` of a SymbolicStr would be recorded as an inspection
    if longer * (size + 1) > MAX_CHARACTERS:
        require_size(size + str.count(text, old) * longer)


def require_items(count: int) -> None:
    """Refuse a list that would be too long."""
    if count > MAX_ITEMS:
        raise TemplateLimitError(f"it makes a list of more than {MAX_ITEMS >> 20} Mi items")


def require_size(characters: int) -> None:
    """Refuse a string that would be too long."""
    if characters > MAX_CHARACTERS:
        raise TemplateLimitError(f"it makes a text of more than {MAX_CHARACTERS >> 20} Mi characters")


def concat(pieces: Iterable[str]) -> str:
    """`"".join`, but refuses results that are too long."""
    parts = list(pieces)
    require_size(sum(map(len, parts)))
    return "".join(parts)


_TEXT_METHODS = """
    capitalize casefold center count endswith expandtabs find format format_map index isalnum isalpha isascii isdecimal
    isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip partition
    removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines startswith strip
    swapcase title upper zfill
"""
METHODS: dict[type, frozenset[str]] = {
    str: frozenset(_TEXT_METHODS.split()),
    bytes: frozenset(),
    int: frozenset(),
    float: frozenset({"is_integer"}),
    complex: frozenset(),
    tuple: frozenset({"count", "index"}),
}
"""Methods that a template may call on values of these types and their subclasses. `to_bytes(3 * 10**9)` makes
gigabytes."""
_COMPARING = frozenset({"lstrip", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "strip"})
"""Methods that may compare each character of a text with each of an argument, without reacting to signals."""
BINOPS = frozenset({"*", "**", "%"})
"""Operators that are checked before they run."""


def require_operation(operator: str, left: Any, right: Any) -> None:
    """Refuse an operation whose result would be huge.

    Raises:
        TemplateLimitError: the result would be huge.
    """
    if operator == "*":
        for one, other in ((left, right), (right, left)):
            if isinstance(one, (str, list, tuple)) and isinstance(other, int):
                size = len(one) * max(int(other), 0)
                require_size(size) if isinstance(one, str) else require_items(size)
    if operator == "%":
        if isinstance(left, str):
            _require_format(left, right)
    elif isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length()
        if (bits * abs(right) if operator == "**" else bits + right.bit_length()) > _MAX_BITS:
            raise TemplateLimitError("it computes with numbers of thousands of digits")


def require_call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Count a call, and refuse string methods whose result would be huge.

    Raises:
        TemplateLimitError: the result would be huge, or there were too many steps.
    """
    take_steps(_CALL_STEPS)
    name = getattr(function, "__name__", "")
    # The sandbox wraps `str.format` in its own function.
    subject = getattr(getattr(function, "__wrapped__", function), "__self__", None)
    if not isinstance(subject, str):
        return
    length = str.__len__(subject)
    if length >> _STEP_BITS:
        take_steps(length >> _STEP_BITS)
        if length > MAX_ITEMS and name in ("split", "rsplit", "splitlines"):
            _require_pieces(subject, name, args, kwargs)
    if name == "replace" and len(args) > 1 and isinstance(args[0], str) and isinstance(args[1], str):
        require_replaced(subject, args[0], args[1])
    elif name in ("center", "ljust", "rjust", "zfill", "expandtabs"):
        _require_widths(len(subject) if name == "expandtabs" else 1, *args, *kwargs.values())
    elif name == "join" and args:
        if not isinstance(args[0], (list, tuple, str, range, dict)):
            raise TemplateLimitError("it joins something of unknown size")
        require_items(len(args[0]))
        require_size(len(subject) * len(args[0]) + sum(len(item) for item in args[0] if isinstance(item, str)))
    elif name in ("format", "format_map"):
        _require_format(subject, args)
    elif name in _COMPARING:
        take_products(length, *args, *kwargs.values())


def limited_filters(filters: dict[str, Any]) -> None:
    """Limit the filters that can make something huge from small values."""
    for name in ("center", "indent", "wordwrap", "batch", "slice", "truncate", "round", "urlize"):
        filters[name] = _narrow(filters[name])
    filters["wordwrap"] = _by_word(filters["wordwrap"], width=79)
    filters["urlize"] = _by_word(filters["urlize"], width=1)
    filters["trim"] = _trimmed(filters["trim"])
    for name in ("list", "sort", "unique", "min", "max", "groupby", "sum"):
        filters[name] = _few(filters[name])
    filters["sum"] = _linear_sum(filters["sum"])
    filters["join"] = _short(filters["join"])
    filters["replace"] = _short_replace(filters["replace"])
    inner = filters["format"]

    @wraps(inner)
    def formatted(value: Any, *args: Any, **kwargs: Any) -> str:
        _require_format(str(value), args or kwargs)
        return str(inner(value, *args, **kwargs))

    filters["format"] = formatted


def require_indent(indent: Any) -> None:
    """Refuse an indentation that is too wide."""
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


def _by_word(function: Callable[..., Any], width: int) -> Callable[..., Any]:
    """Counts the copies of a long word that are made to cut pieces of a width off it, one after another."""

    @wraps(function)
    def wrapper(first: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(value, str):
            longest = max(map(len, str.split(value)), default=0)
            piece = (args[0] if args else kwargs.get("width", width)) if width > 1 else 1
            take_steps(longest * longest // (max(piece, 1) if isinstance(piece, int) else 1) >> _STEP_BITS)
        return function(first, value, *args, **kwargs)

    return wrapper


def _trimmed(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def wrapper(value: Any, chars: Any = None) -> Any:
        if chars is not None and isinstance(value, str):
            take_products(str.__len__(value), chars)
        return function(value, chars)

    return wrapper


def _few(function: Callable[..., Any]) -> Callable[..., Any]:
    """Refuses to split a huge text into items, and counts the items."""

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        subject = int(hasattr(function, "jinja_pass_arg"))
        if len(args) <= subject:
            return function(*args, **kwargs)
        value = args[subject]
        if isinstance(value, str):
            require_items(str.__len__(value))
        return function(*args[:subject], counted(value), *args[subject + 1 :], **kwargs)

    return wrapper


def _linear_sum(function: Callable[..., Any]) -> Callable[..., Any]:
    """The sum of lists in linear time; Python's `sum` copies all earlier items again for each list."""

    @wraps(function)
    def wrapper(environment: Any, iterable: Any, attribute: Any = None, start: Any = 0) -> Any:
        if isinstance(start, (int, float)):
            return function(environment, iterable, attribute, start)
        if type(start) not in (list, tuple):
            raise TypeError(f"a sum cannot start with {type(start).__name__}")
        if attribute is not None:
            iterable = map(make_attrgetter(environment, attribute), iterable)
        total = list(start)
        for item in iterable:
            if type(item) is not type(start):
                raise TypeError(f"can only concatenate {type(start).__name__} to {type(start).__name__}")
            take_steps(len(item))
            require_items(len(total) + len(item))
            total.extend(item)
        return total if type(start) is list else tuple(total)

    return wrapper


def _require_pieces(subject: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse a split of a huge text into too many pieces."""
    separator = args[0] if args and name != "splitlines" else kwargs.get("sep")
    if isinstance(separator, str) and separator:
        require_items(str.count(subject, separator) + 1)
    else:
        require_items(str.__len__(subject) // 2 + 1)


def _short(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def wrapper(context: Any, value: Any, d: Any = "", attribute: Any = None) -> Any:
        items = value if isinstance(value, (list, tuple, str)) else list(counted(value))
        require_items(len(items))
        inner = sum(len(item) if isinstance(item, str) else 64 for item in items)
        require_size(len(str(d)) * len(items) + inner)
        return function(context, items, d, attribute)

    return wrapper


def _short_replace(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def wrapper(context: Any, s: Any, old: Any, new: Any, count: Any = None) -> Any:
        if isinstance(s, str) and isinstance(old, str) and isinstance(new, str):
            require_replaced(s, old, new)
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
    if _CHARACTER.search(text) and any(isinstance(value, int) and 0xD800 <= value < 0xE000 for value in values):
        raise TemplateLimitError("it makes half a character (a surrogate), which no file can hold")
