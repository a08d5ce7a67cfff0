"""What every format shares: decoding rows, turning them into examples, and counting what is lost."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec
import numpy as np

from ...schemas.errors import ConfigError, RowFilteredError, RowRejectedError
from ...schemas.fingerprint import short_hash
from ...schemas.rows import IGNORE_INDEX, Example
from .columns import NAMED_COLUMNS, Columns, check_weight, template_inputs
from .rowjson import decode_json, keys_of_row, rejected_row, require_shallow


class ReaderCode(msgspec.Struct, frozen=True, kw_only=True):
    """A user's own reader: the source of its module and the function in it."""

    function: str
    code: str
    path: str = "reader.py"
    """The module's name in errors."""
    folder: str = ""
    """The folder that is searched last for the module's imports; "" for none."""


class Options(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How rows become examples. A format ignores the options that it has no use for."""

    keys: dict[str, str] = {}
    """Field in `Format.columns` → the name of its column, where that is another: {"prompt": "question"}."""
    style: Literal["plain", "chat"] | None = None
    """`chat`: texts become messages. `plain`: they are joined as they are. None: as the format does by default."""
    per_turn: bool = False
    """One example for each turn of the assistant."""
    prompt_only: bool = False
    """Completions are ignored and may be absent; examples get an empty one."""
    max_solutions: int | None = None
    """APPS: keep at most this many solutions of a problem, after removing duplicates. None keeps all."""
    reader: ReaderCode | None = None
    """The user's own reader; None for all other formats."""

    def payload(self) -> dict[str, Any]:
        """What decides the examples, as plain data: the options that are not the default. A reader is represented by
        its function and a hash of its module's source.
        """
        # Not the path: the same reader in another folder makes the same examples, and finds them in the cache.
        out: dict[str, Any] = msgspec.to_builtins(self)
        if self.reader is not None:
            digest = short_hash(self.reader.code.encode(), size=16)
            out["reader"] = {"function": self.reader.function, "code": digest}
        return out


class RejectedRow(NamedTuple):
    """A row that cannot be used."""

    row: int
    """Its number in the block, from 0."""
    reason: str
    """A name of the table `schemas.tables.reasons`."""
    detail: str
    """What is wrong with it, for people."""


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
    """How many rows were read, whatever became of them."""
    blank: int
    """Lines of only whitespace."""
    unread_columns: Counter[str] = field(default_factory=Counter)
    """How many rows have each column that the format does not read."""
    unread_keys: Counter[str] = field(default_factory=Counter)
    """How many messages have each key that is neither read nor refused; a template may read it."""


class _Row(msgspec.Struct):
    """A decoded row. A field whose column is not read is None."""

    # Python calls this only for attributes that are not there. So a format need not ask whether a column is read.
    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class Format(ABC):
    """Turns source rows into examples: a table of columns and a function. Cheap to build.

    Raises:
        ConfigError: a key cannot name a column, or two columns have one name.
    """

    name: ClassVar[str]
    columns: ClassVar[Columns]
    """Field → its column. Beside these, `weight` and `group` are read if the user names their columns."""
    other_names: ClassVar[tuple[str, ...]] = ()
    """Other usual names of the first column, which detection tries."""
    values: ClassVar[str] = "texts"
    """What the required columns hold, in words, for the messages of detection."""
    has_one_list: ClassVar[bool] = False
    """Whether its conversations are written for other tools as one list of messages, and not as prompt and
    completion."""
    default_style: ClassVar[Literal["plain", "chat"]] = "plain"

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self.style = self.options.style or self.default_style
        self.unread: Counter[str] = Counter()
        """Key of messages that is neither read nor refused → how many messages have had it since `prepare` began."""
        self.keys = self.read_columns()
        """The name of each column that is read, by field."""
        columns = {name: self.columns.get(name) or NAMED_COLUMNS[name] for name in self.keys}
        # Looked up once here, because `_checked` runs for every row, and few columns need each check.
        self._refusing_columns = {name: column for name, column in columns.items() if column.refused is not None}
        # Field → (decoder of a JSON text in it, what the text should be in words).
        self._cell_decoders = {
            name: (msgspec.json.Decoder(column.type).decode, column.cell)
            for name, column in columns.items()
            if column.cell
        }
        self._nested_fields = [name for name, column in columns.items() if column.nested]
        self._row_type = self._make_row_type(columns)
        self._decoder = msgspec.json.Decoder(self._row_type)

    def read_columns(self) -> dict[str, str]:
        """The name of each column that is read, by field: {"prompt": "question", "completion": "completion"}."""
        names = self.options.keys
        # With keys {"prompt": "completion"}, the column `completion` is the prompt, and not the completion too. Only a
        # required column is kept, so that two fields of one name are refused.
        taken_names = set(names.values())
        keys: dict[str, str] = {}
        for field_name, column in self.columns.items():
            if field_name in names or column.required or field_name not in taken_names:
                keys[field_name] = names.get(field_name, field_name)
        return keys | {name: names[name] for name in NAMED_COLUMNS if name in names}

    def _make_row_type(self, columns: Columns) -> Any:
        """The type of a decoded row: a struct with an attribute for each field. msgspec parses nothing else of a line,
        so that long values of other columns cost no time.

        Raises:
            ConfigError: a name has a quote, or two fields have one name.
        """
        fields: list[Any] = []
        for name, column in columns.items():
            value_type = column.type
            if column.cell:
                value_type |= str
            # A third member is the default value.
            fields.append((name, value_type) if column.required else (name, value_type, None))
        try:
            # An attribute has the name of its field, and reads the column of that field in `keys`.
            return msgspec.defstruct("Row", fields, bases=(_Row,), rename=self.keys, kw_only=True)
        except ValueError as error:
            raise ConfigError(f"keys of format {self.name}: {error}") from None

    @property
    def needs_template(self) -> bool:
        """Whether every example is a conversation, so that there must be a chat template."""
        return self.style == "chat"

    @property
    def is_plain(self) -> bool:
        """Whether no example is a conversation, so that a chat template makes no difference."""
        # A nested column may hold messages, which are a conversation in any style.
        return self.style != "chat" and not self._nested_fields

    @property
    def described(self) -> str:
        """The required columns and what they hold, in words: "`prompt` and `completion`, both texts or both lists of
        messages".
        """
        names = " and ".join(f"`{name}`" for name in self._required_names())
        return f"{names}, {self.values}"

    def fits(self, row: Mapping[str, Any]) -> bool:
        """Whether a row seems to be of this format: for detection. Here: it has the required columns."""
        return all(row.get(name) is not None for name in self._required_names())

    def _required_names(self) -> list[str]:
        """The names of the columns without which there is no row, as the user has them."""
        return [self.keys[field_name] for field_name, column in self.columns.items() if column.required]

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
        """The examples of one row, as `examples` returns them, and with what does not depend on the format: variables
        and documents for the chat template, and the row's weight and group, if the user names their columns.

        Raises:
            RowRejectedError, RowFilteredError: for the same reasons as `examples`; also `weight`, `unusable_column`.
        """
        # Before the examples, so that a row that is refused for one of these has counted nothing as skipped.
        weight = check_weight(row.weight, self.keys["weight"]) if "weight" in self.keys else 1.0
        group = str(row.group) if "group" in self.keys and row.group is not None else ""
        inputs = template_inputs(row, self.keys)
        examples = self.examples(row, line, skipped)
        if weight == 1 and not group and not inputs:
            return examples  # as of nearly all rows: nothing to copy
        return [
            example._replace(weight=weight * example.weight, group=group or example.group, **inputs)
            for example in examples
        ]

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
        row = self._public_conversation(example)
        inputs = {
            "tools": example.tools,
            "chat_template_kwargs": example.variables,
            "documents": example.documents,
        }
        return row | {name: value for name, value in inputs.items() if value is not None}

    def _public_conversation(self, example: Example) -> dict[str, Any]:
        """The texts or messages of an example, in columns as `public_row` returns them."""
        prompt = example.prompt
        completion = example.completion
        if example.rejected is not None:
            return {"prompt": prompt, "chosen": completion, "rejected": example.rejected}
        if self.options.prompt_only:
            return {"prompt": prompt}
        # With `per_turn`, which turn an example trains is said only by where its completion begins.
        has_one_list = completion == [] or (self.has_one_list and not self.options.per_turn)
        if has_one_list and isinstance(prompt, list) and isinstance(completion, list):
            return {"messages": prompt + completion}
        return {"prompt": prompt, "completion": completion}

    def decode(self, line: bytes) -> Any:
        """Decode one line of JSON. Values of columns that the format does not read are not parsed, so invalid UTF-8 in
        them is not found.

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
            RowRejectedError: for the same reasons as `decode`. `invalid_utf8` is half of a surrogate pair here.
        """
        try:
            converted = msgspec.convert(row, self._row_type)
            # The bytes are not used. Half of a surrogate pair cannot be encoded as UTF-8, and a walk in Python over all
            # texts would find it more slowly.
            msgspec.json.encode(converted)
        except UnicodeEncodeError as error:
            raise RowRejectedError("invalid_utf8", f"a text is not UTF-8: {error.reason}") from None
        except (msgspec.ValidationError, RecursionError) as error:
            raise rejected_row(error) from None
        except (TypeError, OverflowError, ValueError) as error:
            raise RowRejectedError("wrong_type", f"a value has no form in JSON: {error}") from None
        return self._checked(converted)

    def _checked(self, row: Any) -> Any:
        """The same row, once its columns hold what the table of columns says. Cells that are JSON texts are decoded in
        place.

        Raises:
            RowRejectedError: a column is refused, is not the JSON that it should be, or nests too deeply.
        """
        for name, column in self._refusing_columns.items():
            value = getattr(row, name)
            if value is not None:
                column.require_usable(value, f"`{self.keys[name]}`")
        for name, (decode, kind) in self._cell_decoders.items():
            value = getattr(row, name)
            if isinstance(value, str):
                decoded = None  # for a blank cell
                if value.strip():
                    decoded = decode_json(value, f"`{self.keys[name]}`", decode=decode, kind=kind)
                setattr(row, name, decoded)
        for name in self._nested_fields:
            value = getattr(row, name)
            if value is not None:  # as most are: the call and its text cost a fiftieth of encoding chats
                require_shallow(value, f"`{self.keys[name]}`")
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
        shapes: Counter[tuple[str, ...]] = Counter()  # keys of a row → how many rows have these
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
                    # After decoding, so that the columns of rows that cannot be used count nowhere. Those of tables are
                    # known from their schema, and counted where they are read.
                    shapes[keys_of_row(item)] += 1
                else:
                    row = self.convert(item)
                examples += self.complete_examples(row, line, skipped)
            except RowRejectedError as error:
                rejects.append(RejectedRow(line, error.reason, error.detail))
            except RowFilteredError as error:
                filtered[error.reason] += 1
        # A format without a table of columns is a user's own reader, which sees every key: none is known to be unread.
        columns = self._unread_columns(shapes) if self.columns else Counter[str]()
        return PreparedBlock(
            examples=examples,
            rejects=rejects,
            filtered=filtered,
            skipped=skipped,
            rows=rows,
            blank=blank,
            unread_columns=columns,
            # A copy: the next block clears and fills the format's own.
            unread_keys=Counter(self.unread),
        )

    def _unread_columns(self, shapes: Mapping[tuple[str, ...], int]) -> Counter[str]:
        """How many rows have each column that is not read.

        Args:
            shapes: how many rows have the same keys: {("text", "url"): 2000}. A block has thousands of rows, of few
                shapes.
        """
        read = set(self.keys.values())
        unread = Counter[str]()
        for shape, count in shapes.items():
            unread.update(dict.fromkeys(set(shape) - read, count))
        return unread
