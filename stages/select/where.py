"""A user's SQL condition that selects examples. polars evaluates it, and is imported only here.

The condition sees one example per row, in the columns of COLUMNS. It must give true or false for each row, independent
of other rows. It is trusted as a reader function is, because polars may open files that it names; it comes from the
user's own configuration.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from ...schemas.errors import ConfigError
from ...schemas.rows import Example, Messages
from ..prep import PreparedBlock

if TYPE_CHECKING:
    from polars import Series

REASON = "where"
"""The ledger's reason for examples that the condition leaves out."""

_MAX_OPERATORS = 1_000
"""In a condition. polars works through operators one within the other, up to the end of its stack."""
_MAX_CHARACTERS = 1 << 20
"""Of a condition."""
# A quoted text or name; an operator; a call that pads; a number.
_LITERAL = re.compile(r"'(?:[^']|'')*+'|\"[^\"]*+\"")
_OPERATOR = re.compile(r"\b(?:and|or|not|case|when|between|like|ilike|is|in)\b|[-+*/%|<>=~!&^(]", re.IGNORECASE)
_PAD = re.compile(r"[lr]pad", re.IGNORECASE)
_INTEGER = re.compile(r"[0-9]{1,40}")
_MAX_PADDED = 1_000_000
"""Characters to which a condition may pad a text: a few of these take all memory."""
_SHOWN = 500
"""How many characters of a condition an error shows."""


def _text_of(side: Messages | str | None) -> str | None:
    """One side of an example as text: the contents of its messages, joined by line ends."""
    if side is None or isinstance(side, str):
        return side
    return "\n".join(str(message.get("content") or "") for message in side)


def _roles(example: Example) -> list[str] | None:
    """The roles of all messages of prompt and completion; None if neither is a conversation."""
    sides = [side for side in (example.prompt, example.completion) if isinstance(side, list)]
    return [str(message.get("role", "")) for side in sides for message in side] if sides else None


COLUMNS: dict[str, Callable[[Example], Any]] = {
    "prompt": lambda example: _text_of(example.prompt),
    "completion": lambda example: _text_of(example.completion),
    "rejected": lambda example: _text_of(example.rejected),
    "text": lambda example: example.text,
    "roles": _roles,
    "tools": lambda example: msgspec.json.encode(example.tools).decode() if example.tools else None,
    "group": lambda example: example.group,
}
"""The value of each column; null if the example lacks it. All are texts except `roles`, a list of texts with one for
each message.
"""


class Where:
    """A condition, compiled.

    Args:
        condition: in SQL.
        key: the key of the configuration that has it, for messages.

    Raises:
        ConfigError: polars is missing, or the condition is not SQL, uses an unknown column, or does not give true or
        false.
    """

    def __init__(self, condition: str, key: str = "where") -> None:
        self.condition = condition
        self.key = key
        try:
            import polars
        except ImportError:
            raise ConfigError(
                f"{key}: conditions need polars, which is not installed; run pip install 'packtrain[filter]'"
            ) from None
        self._polars = polars
        # Refused before polars sees it, because polars would end the process. Operators in quoted texts do not count.
        operators = len(_OPERATOR.findall(_LITERAL.sub("''", condition)))
        if operators > _MAX_OPERATORS or len(condition) > _MAX_CHARACTERS:
            raise self._wrong(
                f"it has {operators:,} operators in {len(condition):,} characters, and may have "
                f"{_MAX_OPERATORS:,} in {_MAX_CHARACTERS:,}: polars ends the process over long ones; "
                "compare with a list (IN), or write a reader"
            )
        if _PAD.search(condition) and any(int(number) > _MAX_PADDED for number in _INTEGER.findall(condition)):
            raise self._wrong(f"it pads texts to more than {_MAX_PADDED:,} characters")
        self._expression = self._guarded(lambda: polars.sql_expr(condition))
        if not isinstance(self._expression, polars.Expr):
            raise self._wrong("it is more than one condition")
        # The names of the columns that the condition uses.
        names = self._guarded(self._expression.meta.root_names)
        if not names:
            raise self._wrong("it uses no column")
        self._names = list(dict.fromkeys(names))
        for name in self._names:
            if name not in COLUMNS:
                raise self._wrong(f"there is no column {name!r}; the columns are {', '.join(COLUMNS)}")
        # Of no rows: the type is known without a value.
        empty = self._series([])
        if empty.dtype != polars.Boolean:
            raise self._wrong(f"it gives {empty.dtype} instead of true or false")

    def __call__(self, examples: Sequence[Example]) -> list[bool]:
        """(N,) whether the condition is true for each example; null counts as false, as in SQL.

        Raises:
            ConfigError: a value cannot be computed, such as casting a text that is not a number.
        """
        values = self._series(examples)
        if len(values) != len(examples):
            raise self._wrong("it computes one value from all rows; it must be true or false for each row")
        return [value is True for value in values.to_list()]

    def check(self, examples: Sequence[Example]) -> None:
        """Try the condition on some examples, together and one by one.

        Raises:
            ConfigError: the condition cannot be computed, or its result for an example depends on the others.
        """
        together = self(examples)
        if together != [flag for example in examples for flag in self([example])]:
            raise self._wrong("its result for a row depends on other rows")

    def filtered(self, prepared: PreparedBlock) -> PreparedBlock:
        """The block without the examples that the condition leaves out. A row that loses all its examples is counted as
        a filtered row; an example whose row keeps others is counted as a skipped example.
        """
        flags = self(prepared.examples)
        if all(flags):
            return prepared
        kept = [example for example, flag in zip(prepared.examples, flags, strict=True) if flag]
        lines_kept = {example.line for example in kept}
        lines_of_left_out = [example.line for example, flag in zip(prepared.examples, flags, strict=True) if not flag]
        filtered_rows = len({*lines_of_left_out} - lines_kept)
        skipped_examples = sum(line in lines_kept for line in lines_of_left_out)
        # Only counts above 0, because the ledger would show an entry of 0.
        filtered = Counter(prepared.filtered)
        if filtered_rows:
            filtered[REASON] += filtered_rows
        skipped = Counter(prepared.skipped)
        if skipped_examples:
            skipped[REASON] += skipped_examples
        return replace(prepared, examples=kept, filtered=filtered, skipped=skipped)

    def _series(self, examples: Sequence[Example]) -> "Series":
        """The values of the condition: one for each example, or one in all if it computes a sum or the like."""
        polars = self._polars
        schema = {name: polars.List(polars.String) if name == "roles" else polars.String for name in self._names}
        data = {name: [COLUMNS[name](example) for example in examples] for name in self._names}
        frame = polars.DataFrame(data, schema=schema)
        series: Series = self._guarded(lambda: frame.select(self._expression.alias("where")).to_series())
        return series

    def _guarded(self, compute: Callable[[], Any]) -> Any:
        """Call polars, and report its errors as errors of the condition."""
        errors = (self._polars.exceptions.PolarsError, self._polars.exceptions.PanicException, TypeError, ValueError)
        try:
            return compute()
        except errors as error:
            raise self._wrong(str(error).strip().split("\n")[0]) from None

    def _wrong(self, why: str) -> ConfigError:
        """The error for a condition that cannot be used."""
        shown = self.condition if len(self.condition) <= _SHOWN else f"{self.condition[:_SHOWN]}..."
        return ConfigError(f"{self.key}: the condition {shown!r} cannot be used: {why}")
