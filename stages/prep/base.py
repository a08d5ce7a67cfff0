"""What every format shares: columns, decoding rows, turning them into examples, and counting what is lost."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np

from ...schemas.errors import ConfigError, RowFilteredError, RowRejectedError
from ...schemas.fingerprint import short_hash
from ...schemas.rows import IGNORE_INDEX, Example
from .rowjson import decode_json, keys_of_row, rejected_row, require_shallow
from .template_inputs import template_inputs

LEAST_WEIGHT = 1e-6
MOST_WEIGHT = 1e6
"""Limits of a weight that is not 0. So products of three weights stay within float32."""


def is_filled(value: Any) -> bool:
    """Whether a value is not an empty text, list or object."""
    return value not in ("", [], {})


def is_truth(value: Any) -> bool:
    """Whether a value is true or false, also as a word, as in a cell of CSV."""
    return isinstance(value, bool) or (isinstance(value, str) and value.strip().lower() in ("true", "false"))


@dataclass(frozen=True)
class Column:
    """A column that a format reads. Its name is its field's in `Format.columns`, unless the user gives another.

    A column that is not required is not read if the user gave its name to another one.
    """

    type: Any
    """The type of its values, for msgspec."""
    required: bool = False
    nested: bool = False
    """Whether it holds messages or tools, which may not nest too deeply."""
    cell: str = ""
    """What a text in it is the JSON of, in words, as in a cell of CSV; a blank one is null. "": texts stay texts."""
    refused: tuple[str, str] | None = None
    """Reason and detail with which a row is rejected that has a value in it which `refuses` says cannot be used."""
    refuses: Callable[[Any], bool] = is_filled
    """Whether a value that is not null is refused; here: anything that is not empty."""


Columns: TypeAlias = Mapping[str, Column]
"""The columns of a format, by field."""


class ReaderCode(msgspec.Struct, frozen=True, kw_only=True):
    """A user's own reader: the source of its module and the function in it."""

    function: str
    code: str
    path: str = "reader.py"
    """The module's name in errors."""
    folder: str = ""
    """Folder that is searched last for the module's imports."""


class Options(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How rows become examples. A format ignores the options that it has no use for."""

    keys: dict[str, str] = {}
    """Other names of columns, by their field in `Format.columns`."""
    style: Literal["plain", "chat"] | None = None
    """`chat`: texts become messages. `plain`: they are joined as they are. None: the format's."""
    per_turn: bool = False
    """One example for each turn of the assistant."""
    prompt_only: bool = False
    """Completions are ignored and may be absent; examples get an empty one."""
    max_solutions: int | None = None
    """APPS: keep at most this many solutions of a problem, after removing duplicates. None keeps all."""
    reader: ReaderCode | None = None
    """The user's own reader."""

    def payload(self) -> dict[str, Any]:
        """What decides the examples, as plain data: the options that are not the default. A reader is represented by
        its function and a hash of its module's source.
        """
        out: dict[str, Any] = msgspec.to_builtins(self)
        if self.reader is not None:
            digest = short_hash(self.reader.code.encode(), 16)
            out["reader"] = {"function": self.reader.function, "code": digest}
        return out


class RejectedRow(NamedTuple):
    """A row that cannot be used."""

    row: int
    """Its number in the block, from 0."""
    reason: str
    """See `schemas.tables.reasons`."""
    detail: str


@dataclass(frozen=True, slots=True)
class PreparedBlock:
    """Examples of one block, with counts of the rows without examples and of the examples left out.

    Each row gives one or more examples, is rejected, or is filtered: `rows == len(rejects) + filtered.total() + rows
    that gave examples`. Blank lines are not rows.
    """

    examples: list[Example]
    """Ordered by row, then by example within the row."""
    rejects: list[RejectedRow]
    """In order of rows."""
    filtered: Counter[str]
    """Well-formed rows that were filtered out, by reason."""
    skipped: Counter[str]
    """Examples left out, by reason (`duplicate`, `empty`, `over_limit`), of rows that still gave another example."""
    rows: int
    blank: int
    """Lines of only whitespace."""
    unread_columns: Counter[str] = field(default_factory=Counter)
    """How many rows have each column that the format does not read."""
    unread_keys: Counter[str] = field(default_factory=Counter)
    """How many messages have each key that is neither read nor refused; a template may read it."""


class _Row(msgspec.Struct):
    """A decoded row: a field that is not read is None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class Format(ABC):
    """Turns source rows into examples: a table of columns and a function. Cheap to build.

    Raises:
        ConfigError: see `read_columns`.
    """

    name: ClassVar[str]
    columns: ClassVar[Columns]
    """The columns that are read, by field; beside them, `weight` if the user names it."""
    other_names: ClassVar[tuple[str, ...]] = ()
    """Other usual names of the first column, which detection tries."""
    values: ClassVar[str] = "texts"
    """What the required columns hold, in the words of detection."""
    has_one_list: ClassVar[bool] = False
    """Whether its conversations are written for other tools as they are, not as prompt and completion."""
    default_style: ClassVar[Literal["plain", "chat"]] = "plain"

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self.style = self.options.style or self.default_style
        self.unread: Counter[str] = Counter()
        """The keys of messages that are neither read nor refused, since `prepare` began, with how many have them."""
        self.keys = self.read_columns()
        """The name of each column that is read, by field."""
        columns = {key: self.columns.get(key, _WEIGHT) for key in self.keys}
        self._refused = [
            (key, column.refused, column.refuses) for key, column in columns.items() if column.refused is not None
        ]
        self._cells = [
            (key, msgspec.json.Decoder(column.type).decode, column.cell)
            for key, column in columns.items()
            if column.cell
        ]
        self._nested = [key for key, column in columns.items() if column.nested]
        fields: list[Any] = []
        for key, column in columns.items():
            value_type = column.type | str if column.cell else column.type
            fields.append((key, value_type) if column.required else (key, value_type, None))
        try:
            self._row_type: Any = msgspec.defstruct("Row", fields, bases=(_Row,), rename=self.keys, kw_only=True)
        except ValueError as error:  # of a name with quotes, or of one column for two keys
            raise ConfigError(f"keys of format {self.name}: {error}") from None
        self._decoder = msgspec.json.Decoder(self._row_type)

    def read_columns(self) -> dict[str, str]:
        """The name of each column that is read, by field."""
        names = self.options.keys
        # With {prompt: completion}, the column `completion` is the prompt, and not the completion too.
        keys = {
            key: names.get(key, key)
            for key, column in self.columns.items()
            if key in names or column.required or key not in names.values()
        }
        return keys | ({"weight": names["weight"]} if "weight" in names else {})

    @property
    def needs_template(self) -> bool:
        """Whether every example is a conversation."""
        return self.style == "chat"

    @property
    def is_plain(self) -> bool:
        """Whether no example is a conversation."""
        return self.style != "chat" and not self._nested

    @property
    def described(self) -> str:
        """The required columns and what they hold, in words."""
        return f"{' and '.join(f'`{self.keys[key]}`' for key in self._required())}, {self.values}"

    def fits(self, row: Mapping[str, Any]) -> bool:
        """Whether a row seems to be of this format: for detection. Here: it has the required columns."""
        return all(row.get(self.keys[key]) is not None for key in self._required())

    def _required(self) -> list[str]:
        return [key for key, column in self.columns.items() if column.required]

    @abstractmethod
    def examples(self, row: Any, line: int, skipped: Counter[str]) -> list[Example]:
        """The examples of one row, at least one.

        Args:
            row: as `decode` and `convert` return it: an attribute for each field; None if it is not read.
            line: the row's number, copied to the examples.
            skipped: counts, by reason, the examples left out of a row that gives others; updated in place.

        Raises:
            RowRejectedError: a value of the row cannot be used.
            RowFilteredError: the row is well formed but filtered out.
        """

    def complete_examples(self, row: Any, line: int, skipped: Counter[str]) -> list[Example]:
        """The examples of one row, with what the row hands to the chat template. See `examples`.

        Raises:
            RowRejectedError: also `unusable_column`.
        """
        inputs = template_inputs(row, self.keys)
        examples = self.examples(row, line, skipped)
        return [example._replace(**inputs) for example in examples] if inputs else examples

    def public_row(self, example: Example) -> dict[str, Any]:
        """One example in the columns that TRL and other tools read. Its values are shared, not copied.

        Returns:
            `{"text"}`, `{"input_ids", "labels"}`, `{"prompt", "chosen", "rejected"}`, `{"prompt", "completion"}`,
            `{"prompt"}` with `prompt_only`, or `{"messages"}` for what has no completion and for formats with
            `has_one_list`; plus `tools`, `chat_template_kwargs` and `documents` if the conversation has some.
        """
        if example.text is not None:
            return {"text": example.text}
        if example.ids is not None:
            ids = np.asarray(example.ids, np.int64)
            labels = ids if example.trained is None else np.where(example.trained, ids, IGNORE_INDEX)
            return {"input_ids": ids.tolist(), "labels": labels.tolist()}
        prompt = example.prompt
        completion = example.completion
        has_one_list = completion == [] or (self.has_one_list and not self.options.per_turn)
        if example.rejected is not None:
            row = {"prompt": prompt, "chosen": completion, "rejected": example.rejected}
        elif self.options.prompt_only:
            row = {"prompt": prompt}
        elif has_one_list and isinstance(prompt, list) and isinstance(completion, list):
            row = {"messages": prompt + completion}
        else:
            row = {"prompt": prompt, "completion": completion}
        beside = {
            "tools": example.tools,
            "chat_template_kwargs": example.variables,
            "documents": example.documents,
        }
        return row | {key: value for key, value in beside.items() if value is not None}

    def decode(self, line: bytes) -> Any:
        """Decode one line of JSON. Keys that the format does not use are not parsed.

        So invalid UTF-8 is found only in values that are used.

        Raises:
            RowRejectedError: `invalid_utf8`, `invalid_json`, `not_an_object`, `missing_key`, `wrong_type`, `too_deep`,
                and what the table of columns refuses.
        """
        try:
            row = self._decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise rejected_row(error, line) from None
        return self._checked(row)

    def convert(self, row: Mapping[str, Any]) -> Any:
        """Convert a decoded row, such as one of a table, to the type that `decode` returns.

        Raises:
            RowRejectedError: see `decode`; `invalid_utf8` is a lone surrogate.
        """
        try:
            converted = msgspec.convert(row, self._row_type)
            msgspec.json.encode(converted)  # the only fast way to find lone surrogates, which UTF-8 cannot encode
        except UnicodeEncodeError as error:
            raise RowRejectedError("invalid_utf8", f"a text is not UTF-8: {error.reason}") from None
        except (msgspec.ValidationError, RecursionError) as error:
            raise rejected_row(error) from None
        except (TypeError, OverflowError, ValueError) as error:
            raise RowRejectedError("wrong_type", f"a value has no form in JSON: {error}") from None
        return self._checked(converted)

    def _checked(self, row: Any) -> Any:
        """A row whose columns hold what the table says."""
        for key, (reason, detail), refuses in self._refused:
            value = getattr(row, key)
            if value is not None and refuses(value):
                raise RowRejectedError(reason, f"`{self.keys[key]}` is not empty: {detail}")
        for key, decode, words in self._cells:
            value = getattr(row, key)
            if isinstance(value, str):
                where = f"`{self.keys[key]}`"
                setattr(row, key, decode_json(value, where, decode, kind=words) if value.strip() else None)
        for key in self._nested:
            require_shallow(getattr(row, key), f"`{self.keys[key]}`")
        return row

    def prepare(self, items: Iterable[tuple[int, bytes | Mapping[str, Any]]]) -> PreparedBlock:
        """Turn rows into examples; never raises because of a row's content.

        Args:
            items: (row number, a line of JSON with or without its end, or a decoded row).
        """
        examples: list[Example] = []
        rejects: list[RejectedRow] = []
        filtered: Counter[str] = Counter()
        skipped: Counter[str] = Counter()
        shapes: Counter[tuple[str, ...]] = Counter()
        self.unread.clear()
        rows = blank = 0
        for line, item in items:
            if isinstance(item, bytes) and (not item or item.isspace()):
                blank += 1
                continue
            rows += 1
            try:
                if isinstance(item, bytes):
                    row = self.decode(item)
                    shapes[keys_of_row(item)] += 1
                else:
                    row = self.convert(item)
                weight = check_weight(row.weight, self.keys["weight"]) if "weight" in self.keys else 1.0
                row_examples = self.complete_examples(row, line, skipped)
                if weight != 1:
                    row_examples = [example._replace(weight=weight * example.weight) for example in row_examples]
                examples += row_examples
            except RowRejectedError as error:
                rejects.append(RejectedRow(line, error.reason, error.detail))
            except RowFilteredError as error:
                filtered[error.reason] += 1
        columns = self._unread_columns(shapes) if self.columns else Counter[str]()
        return PreparedBlock(examples, rejects, filtered, skipped, rows, blank, columns, Counter(self.unread))

    def _unread_columns(self, shapes: Mapping[tuple[str, ...], int]) -> Counter[str]:
        """How many rows have each column that is not read, from how many have the same keys."""
        # Rows of one shape are counted together: a block has few shapes, and thousands of rows.
        read = set(self.keys.values())
        unread = Counter[str]()
        for shape, count in shapes.items():
            unread.update(dict.fromkeys(set(shape) - read, count))
        return unread


_WEIGHT = Column(Any, required=True)
"""The loss weight of a row, which all its examples get; read if the user names its column."""


def check_weight(value: Any, where: str) -> float:
    """The loss weight of a message or an example as a number; 1 for null.

    Raises:
        RowRejectedError: `weight`, for anything but 0 and numbers within the limits.
    """
    if value is None:
        return 1.0
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and (value == 0 or LEAST_WEIGHT <= value <= MOST_WEIGHT):  # false for NaN
        return float(value)
    rule = "a weight is 0 (not trained), or a number"
    raise RowRejectedError(
        "weight", f"`{where}` is {repr(value)[:40]}: {rule} from {LEAST_WEIGHT:g} to {MOST_WEIGHT:,.0f}"
    )
