"""A person's SQL condition over examples: which of them are wanted. polars reads it, and is imported only here.

The condition sees one example a row, in the columns of COLUMNS. `condition` passes it before polars does: listed
functions and operators only, so it reads no file and runs no Python. It must say true or false of each row by itself.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from ..schemas.errors import ConfigError
from ..schemas.rows import Example, Messages
from .condition import RefusedConditionError, check_condition
from .prep import Prepared

if TYPE_CHECKING:
    from polars import Series

REASON = "where"
"""The ledger's word for what the condition leaves out."""

_SHOWN = 500
"""Characters of a condition that an error repeats."""


def _said(side: Messages | str | None) -> str | None:
    """A side of an example as one text: what its messages say, joined by line ends."""
    if side is None or isinstance(side, str):
        return side
    return "\n".join(_content(message) or "" for message in side)


def _content(message: dict[str, Any]) -> str | None:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return None if content is None else str(content)


def _messages(example: Example) -> list[dict[str, str | None]] | None:
    sides = [side for side in (example.prompt, example.completion) if isinstance(side, list)]
    if not sides:
        return None
    return [{"role": str(one.get("role", "")), "content": _content(one)} for side in sides for one in side]


def _roles(example: Example) -> list[str] | None:
    messages = _messages(example)
    return None if messages is None else [str(one["role"]) for one in messages]


COLUMNS: dict[str, Callable[[Example], Any]] = {
    "prompt": lambda one: _said(one.prompt),
    "completion": lambda one: _said(one.completion),
    "rejected": lambda one: _said(one.rejected),
    "text": lambda one: one.text,
    "messages": _messages,
    "roles": _roles,
    "tools": lambda one: msgspec.json.encode(one.tools).decode() if one.tools else None,
    "group": lambda one: one.group,
}
"""What each column holds; null where an example has no such thing. All are texts but `messages`, a list of `role` and
`content`, and `roles`, a list of texts."""

_TEXTS = (("a", "b"), ("a", "bcd"), ("ef", ""), ("ef", "g h"), ("a", "b"), ("i", "j" * 99))
_PROBES = [
    Example(number, -1, "ab"[number % 2], prompt=prompt, completion="x" * number, text=text)
    for number, (prompt, text) in enumerate(_TEXTS)
]
"""Unlike one another in length, order and grouping: what says otherwise of one beside the others is not of its own."""


class Where:
    """A condition, compiled.

    Raises:
        ConfigError: polars is missing, or the condition is wrong: no SQL, an unknown column, a function that is not
            allowed, too large, no truth value, or one that depends on other rows.
    """

    def __init__(self, condition: str, key: str = "where") -> None:
        self.condition = condition
        self.key = key
        try:
            check_condition(condition, COLUMNS)
        except RefusedConditionError as error:
            raise self._wrong(str(error)) from None
        try:
            import polars
        except ImportError:
            raise ConfigError(
                f"{key}: conditions need polars, which is not installed; run pip install 'packtrain[filter]'"
            ) from None
        self._polars = polars
        self._expression = self._guarded(lambda: polars.sql_expr(condition))
        if not isinstance(self._expression, polars.Expr):
            raise self._wrong("it is more than one condition")
        names = self._guarded(self._expression.meta.root_names)
        if not names:
            raise self._wrong("it looks at no column")
        self._names = list(dict.fromkeys(names))
        found = self._series([])
        if found.dtype != polars.Boolean:
            raise self._wrong(f"it gives {found.dtype} and not true or false")
        try:
            self(_PROBES)
        except ConfigError:
            return  # such as a number that is read from a text: the person's own rows will show it
        self.check(_PROBES)

    def __call__(self, examples: Sequence[Example]) -> list[bool]:
        """(N,) whether the condition is true of each example; null counts as false, as in SQL.

        Raises:
            ConfigError: a value cannot be computed, such as a text that is no number where one is asked for.
        """
        found = self._series(examples)
        if len(found) != len(examples):
            raise self._wrong("it makes one value of all rows; it must say true or false of each")
        return [value is True for value in found.to_list()]

    def check(self, examples: Sequence[Example]) -> None:
        """Try the condition on some examples, together and one by one.

        Raises:
            ConfigError: it cannot be computed, or says otherwise of an example when others stand beside it.
        """
        together = self(examples)
        if together != [flag for example in examples for flag in self([example])]:
            raise self._wrong("what it says of a row depends on the rows beside it")

    def wanted(self, prepared: Prepared) -> Prepared:
        """What is left of a block. A row that loses all its examples is filtered; else the lost ones are skipped."""
        flags = self(prepared.examples)
        if all(flags):
            return prepared
        kept = [example for example, flag in zip(prepared.examples, flags, strict=True) if flag]
        rows = {example.line for example in kept}
        lost = [example.line for example, flag in zip(prepared.examples, flags, strict=True) if not flag]
        filtered, skipped = Counter(prepared.filtered), Counter(prepared.skipped)
        if gone := len({*lost} - rows):
            filtered[REASON] += gone
        if some := sum(line in rows for line in lost):
            skipped[REASON] += some
        return replace(prepared, examples=kept, filtered=filtered, skipped=skipped)

    def _series(self, examples: Sequence[Example]) -> "Series":
        polars = self._polars
        text, message = polars.String, polars.Struct({"role": polars.String, "content": polars.String})
        types = {"messages": polars.List(message), "roles": polars.List(text)}
        schema = {name: types.get(name, text) for name in self._names}
        data = {name: [COLUMNS[name](example) for example in examples] for name in self._names}
        frame = polars.DataFrame(data, schema=schema)
        series: Series = self._guarded(lambda: frame.select(self._expression.alias("where")).to_series())
        return series

    def _guarded(self, compute: Callable[[], Any]) -> Any:
        """Call polars; whatever it finds wrong with the condition is a person's mistake."""
        errors = (self._polars.exceptions.PolarsError, self._polars.exceptions.PanicException, TypeError, ValueError)
        try:
            return compute()
        except errors as error:
            raise self._wrong(str(error).strip().split("\n")[0]) from None

    def _wrong(self, why: str) -> ConfigError:
        shown = self.condition if len(self.condition) <= _SHOWN else f"{self.condition[:_SHOWN]}..."
        return ConfigError(f"{self.key}: the condition {shown!r} cannot be used: {why}")
