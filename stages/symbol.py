"""A string that stands for the content of a message while a template is traced.

A template sees a `Symbol` as a string. What it does to it is written down in a `Record`: a pure operation
(`strip`, `replace`, ...) makes another symbol, an inspection (`in`, `startswith`, truth, ...) is answered
from the content of the row that guides the trace and becomes a guard, and concatenation is kept as a list of
parts. Whatever cannot be written down ends the trace with `TraceAbortedError`; nothing is guessed.

Underneath, as far as C code can see, every symbol is the character MARK. C code that bypasses the methods
here carries it into the text, where the tracer finds it.
"""

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn, SupportsIndex, TypeAlias

from .bounded import require_replaced

MARK = "\U0010fffd"
"""A private-use character without case, width or meaning: string methods leave it as it is."""

Atom: TypeAlias = str | int
"""A part of a symbol: literal text, or the number of a value of the record. The tracer's marks are negative."""

Atoms: TypeAlias = tuple[Atom, ...]


class TraceAbortedError(Exception):
    """The template does something with a content that cannot be written down. Never leaves the tracer."""


class Step(NamedTuple):
    """One line of a record, in the order in which the template did it."""

    name: str
    """The operation: a name of INSPECTIONS or DERIVATIONS, or "cat"."""
    args: tuple[Any, ...]
    """Its literal arguments; for "cat", the atoms that are joined."""
    source: int
    """The value that it is applied to; unused for "cat"."""
    outcome: bool | int
    """What an inspection answered, or the number of the value that was made."""

    @property
    def is_guard(self) -> bool:
        """Whether this is an inspection: its outcome must be the same for the trace to hold."""
        return self.name in INSPECTIONS


def _method(name: str) -> Callable[..., Callable[[str], Any]]:
    return partial(operator.methodcaller, name)


def _split_at(index: int, *args: Any) -> Callable[[str], str]:
    return lambda text: text.split(*args)[index]


def _replace(old: str, new: str, *count: int) -> Callable[[str], str]:
    """`str.replace`, weighed where it makes a text longer.

    Raises:
        TemplateLimitError: from the function, where the text would be too long.
    """
    if len(new) <= len(old):
        return operator.methodcaller("replace", old, new, *count)

    def replaced(text: str) -> str:
        require_replaced(text, old, new)
        return text.replace(old, new, *count)

    return replaced


INSPECTIONS: dict[str, Callable[..., Callable[[str], bool]]] = {
    "truth": lambda: operator.truth,
    "equals": _method("__eq__"),
    "contains": _method("__contains__"),
    "within": lambda text: partial(operator.contains, text),
    **{name: _method(name) for name in ("startswith", "endswith", "isspace", "isdigit", "isupper", "islower")},
}
"""Name to (literal arguments) to (content) to bool."""

DERIVATIONS: dict[str, Callable[..., Callable[[str], str]]] = {
    "split": _split_at,
    "replace": _replace,
    **{
        name: _method(name)
        for name in (
            *("strip", "lstrip", "rstrip", "upper", "lower", "capitalize", "title"),
            *("removeprefix", "removesuffix"),
        )
    },
}
"""Name to (literal arguments) to (content) to text, for every content.

What would make too long a text raises `TemplateLimitError`."""


class Record:
    """What a template did with the contents of one row.

    Args:
        contents: the contents of the row that guides the trace; value i is that of message i.
    """

    def __init__(self, contents: Sequence[str]) -> None:
        self.values: list[str] = list(contents)
        self.steps: list[Step] = []
        self.blocks = 0
        """Generation blocks that were rendered. The tracer counts."""
        self.aborted = ""
        """Why the record is not to be used, or ""."""
        self._known: dict[tuple[str, tuple[Any, ...], int], bool | int] = {}

    def symbol(self, index: int) -> "Symbol":
        """The stand-in for value `index`."""
        return Symbol(self, (index,))

    def inspect(self, atoms: Atoms, name: str, *args: Any) -> bool:
        """Answers from the guiding row, and notes a guard (once)."""
        source = self._value(atoms)
        key = (name, args, source)
        if key not in self._known:
            outcome = INSPECTIONS[name](*args)(self.values[source])
            self._note(key, outcome)
        return bool(self._known[key])

    def derive(self, atoms: Atoms, name: str, *args: Any) -> "Symbol":
        """Notes a new value made from another one."""
        source = self._value(atoms)
        key = (name, args, source)
        if key not in self._known:
            self.values.append(DERIVATIONS[name](*args)(self.values[source]))
            self._note(key, len(self.values) - 1)
        return Symbol(self, (self._known[key],))

    def abort(self, why: str) -> NoReturn:
        """Ends the trace. The reason is kept too, in case something catches the exception."""
        self.aborted = self.aborted or why
        raise TraceAbortedError(why)

    def _value(self, atoms: Atoms) -> int:
        if any(isinstance(atom, int) and atom < 0 for atom in atoms):
            self.abort("the template looks at what a generation block wrote")
        if len(atoms) == 1 and isinstance(atoms[0], int):
            return atoms[0]
        key = ("cat", atoms, -1)
        if key not in self._known:
            self.values.append("".join(a if isinstance(a, str) else self.values[a] for a in atoms))
            self._note(key, len(self.values) - 1)
        return int(self._known[key])

    def _note(self, key: tuple[str, tuple[Any, ...], int], outcome: bool | int) -> None:
        self._known[key] = outcome
        self.steps.append(Step(*key, outcome))


class Symbol(str):
    """A content, or text with contents in it, as the template sees it."""

    __slots__ = ("atoms", "record")

    record: Record
    atoms: Atoms

    def __new__(cls, record: Record, atoms: Atoms) -> "Symbol":
        self = super().__new__(cls, MARK)
        self.record = record
        self.atoms = atoms
        return self

    def __str__(self) -> str:
        return self

    def __add__(self, other: Any) -> Any:
        return concat((self, other)) if self._is_text(other) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return concat((other, self)) if self._is_text(other) else NotImplemented

    def __bool__(self) -> bool:
        if any(isinstance(atom, str) for atom in self.atoms):  # literal parts are never empty
            return True
        return self.record.inspect(self.atoms, "truth")

    def __eq__(self, other: object) -> Any:
        if isinstance(other, Symbol):
            if self.atoms == other.atoms:
                return True
            self.record.abort("two contents are compared")
        if not isinstance(other, str):
            return NotImplemented
        return self.record.inspect(self.atoms, "equals", other)

    def __ne__(self, other: object) -> Any:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    def __contains__(self, other: Any) -> bool:
        return self.record.inspect(self.atoms, "contains", *self._literal("in", (other,)))

    def within(self, text: str) -> bool:
        """Whether this content is a substring of `text`: `content in "literal"`, which C answers."""
        return self.record.inspect(self.atoms, "within", *self._literal("in", (text,)))

    def split(self, sep: Any = None, maxsplit: SupportsIndex = -1) -> Any:
        """Gives an object that knows only its first and last item: those always exist."""
        if sep is None or sep == "":
            self.record.abort("a content is split at whitespace")
        return SymbolParts(self, self._literal("split", (sep, int(maxsplit))))

    def _is_text(self, other: Any) -> bool:
        if isinstance(other, str) and type(other) not in (str, Symbol):
            self.record.abort("a content is added to escaped text")
        return isinstance(other, str)

    def _literal(self, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        for arg in args:
            if type(arg) not in (str, int, type(None)) and not (
                type(arg) is tuple and all(type(item) is str for item in arg)
            ):
                self.record.abort(f"`{name}` is called with something that is not literal")
        return args


class SymbolParts:
    """The list that `content.split(sep)` would be, of which a template may take items 0 and -1."""

    def __init__(self, symbol: Symbol, args: tuple[Any, ...]) -> None:
        self._symbol = symbol
        self._args = args

    def __getitem__(self, index: Any) -> Symbol:
        record = self._symbol.record
        if type(index) is not int or index not in (0, -1):
            record.abort("an item of a split content may not exist")
        return record.derive(self._symbol.atoms, "split", index, *self._args)

    def _abort(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        self._symbol.record.abort("a split content is inspected")

    __iter__ = __len__ = __bool__ = __contains__ = __eq__ = __ne__ = __hash__ = __str__ = __repr__ = _abort
    __add__ = __radd__ = __mul__ = __reversed__ = _abort


def concat(pieces: Iterable[str]) -> str:
    """`"".join` that keeps symbols. Neighbouring literals become one; empty ones vanish."""
    atoms: list[Atom] = []
    record: Record | None = None
    for piece in pieces:
        if isinstance(piece, Symbol):
            record = piece.record
            new: Atoms = piece.atoms
        else:
            new = (str.__str__(piece),) if piece else ()
        for atom in new:
            if atoms and isinstance(atom, str) and isinstance(atoms[-1], str):
                atoms[-1] += atom
            else:
                atoms.append(atom)
    if record is None:
        return "".join(str(atom) for atom in atoms)
    return Symbol(record, tuple(atoms))


def _inspection(name: str) -> Callable[..., bool]:
    def method(self: Symbol, *args: Any) -> bool:
        return self.record.inspect(self.atoms, name, *self._literal(name, args))

    return method


def _derivation(name: str) -> Callable[..., Symbol]:
    def method(self: Symbol, *args: Any) -> Symbol:
        return self.record.derive(self.atoms, name, *self._literal(name, args))

    return method


def _aborting(name: str) -> Callable[..., NoReturn]:
    def method(self: Symbol, *_args: Any, **_kwargs: Any) -> NoReturn:
        self.record.abort(f"`{name}` of a content cannot be traced")

    return method


UNDERSTOOD = frozenset(
    {name for name in (*INSPECTIONS, *DERIVATIONS) if hasattr(str, name) and not name.startswith("_")}
)
"""The methods of str that a template may call on a content."""

_PYTHON_NEEDS = {
    *("__new__", "__init__", "__class__", "__getattribute__", "__setattr__", "__delattr__", "__dir__"),
    *("__doc__", "__init_subclass__", "__subclasshook__", "__sizeof__", "__getstate__", "__getnewargs__"),
}
for _name in dir(str):
    if _name in Symbol.__dict__ and _name != "__hash__":  # defining __eq__ has set __hash__ to None
        continue
    if _name in UNDERSTOOD:
        _made: Callable[..., Any] = _inspection(_name) if _name in INSPECTIONS else _derivation(_name)
        setattr(Symbol, _name, _made)
    elif _name not in _PYTHON_NEEDS:
        setattr(Symbol, _name, _aborting(_name))
