"""What every format shares: decoding bytes to a typed row, a row to examples, and counting what is lost."""

import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar, cast

import msgspec

from ...schemas.errors import ConfigError, RowFilteredError, RowRejectedError
from ...schemas.jsontext import MAX_DEPTH
from ...schemas.rows import Example
from .rowjson import TOO_DEEP, check_depth, pruned
from .weights import check_weight

PublicForm: TypeAlias = Literal["prompt_completion", "prompt", "messages", "text", "preference", "tokenized", "any"]
"""The columns of an example written for other tools (see `public_row`)."""

PLACE = {"place": True}
"""Marks an option that holds a location; such options are not part of `Options.payload`."""

WEIGHT = "weight_of_row"
"""The field of a row's weight, if its column is named."""
_BOM = b"\xef\xbb\xbf"
_MISMATCH = re.compile(r"(?s)(.*?)(?: - at `\$\.?(.*)`)?\Z")
_MISSING = re.compile(r"Object missing required field `(.*)`")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options that decide a format's examples: plain hashable values, without paths except under `PLACE`."""

    weight_key: str | None = None
    """The column of the loss weights of rows, which all examples of a row get. None: 1."""

    def payload(self) -> dict[str, Any]:
        """The options that enter a part's cache key. Without `weight_key` it is that of earlier versions."""
        named = {one.name: getattr(self, one.name) for one in fields(self) if one.metadata != PLACE}
        return {key: value for key, value in named.items() if key != "weight_key" or value is not None}

    def _refuse(self, key: str, why: str) -> None:
        raise ConfigError(f"prep option {key}={getattr(self, key)!r}: {why}")

    def __post_init__(self) -> None:
        keys = [field.name for field in fields(self) if field.name.endswith("_key")]
        for key in keys:
            value = getattr(self, key)
            if value is None:
                continue
            # The JSON decoder finds a key by its raw bytes, so it cannot find a name that JSON escapes.
            if not isinstance(value, str) or not value or re.search(r'["\\\x00-\x1f]', value):
                self._refuse(key, "must be a column's name, without quotes, backslashes or control characters")
            if [getattr(self, other) for other in keys].count(value) > 1:
                self._refuse(key, "two keys name the same column")


OptionsT = TypeVar("OptionsT", bound=Options)
RowT = TypeVar("RowT")
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class PreparedBlock:
    """Examples of one block, with counts of the rows without examples and of the examples left out.

    Each row gives one or more examples, is rejected, or is filtered: `rows == len(rejects) + filtered.total() + rows
    that gave examples`. Blank lines are not rows.
    """

    examples: list[Example]
    """Ordered by row, then by example within the row."""
    rejects: list[tuple[int, str, str]]
    """(line, reason, detail) of each row that cannot be used, in order of lines."""
    filtered: Counter[str]
    """Well-formed rows that were filtered out, by reason."""
    skipped: Counter[str]
    """Examples left out, by reason (`duplicate`, `empty`, `over_limit`), of rows that still gave another example."""
    rows: int
    blank: int
    """Lines of only whitespace."""


class Format(ABC, Generic[OptionsT, RowT]):
    """Turns source rows into examples. Cheap to build; pickled as its options."""

    name: ClassVar[str]
    options_type: ClassVar[type[Options]]
    takes_arrays: ClassVar[bool] = False
    """Whether `convert` takes arrays for lists of integers."""

    def __init__(self, options: OptionsT, row_type: type[RowT], nested: Sequence[str] = ()) -> None:
        """
        Args:
            row_type: the type that rows are decoded to.
            nested: the columns that hold messages or tools; see `rowjson.pruned`.
        """
        self.options = options
        self._nested = nested
        self._row_type = row_type if options.weight_key is None else _weighted(row_type, options)
        self._decoder = msgspec.json.Decoder(self._row_type)

    def __reduce__(self) -> tuple[Any, tuple[OptionsT]]:
        return type(self), (self.options,)

    @property
    @abstractmethod
    def form(self) -> PublicForm:
        """The public columns of this format's examples."""

    @abstractmethod
    def examples(self, row: RowT, line: int, skipped: Counter[str] | None = None) -> list[Example]:
        """The examples of one row, at least one.

        Args:
            line: the row's number, copied to the examples.
            skipped: counts, by reason, the examples left out of a row that gives others; updated in place.

        Raises:
            RowRejectedError: a value of the row cannot be used.
            RowFilteredError: the row is well formed but filtered out.
        """

    def weighted(self, row: RowT, line: int, skipped: Counter[str] | None = None) -> list[Example]:
        """See `examples`; with the weight of the row.

        Raises:
            RowRejectedError, RowFilteredError: as `examples`, and `weight`.
        """
        key = self.options.weight_key
        if key is None:
            return self.examples(row, line, skipped)
        weight = check_weight(getattr(row, WEIGHT), key)
        return [one._replace(weight=weight * one.weight) for one in self.examples(row, line, skipped)]

    def decode(self, line: bytes) -> RowT:
        """Decode one line of JSON. Keys that the format does not use are not parsed.

        So invalid UTF-8 is found only in values that are used. A byte order mark before the object is accepted.

        Raises:
            RowRejectedError: `invalid_utf8`, `invalid_json`, `not_an_object`, `missing_key`, `wrong_type`, `too_deep`.
        """
        check_depth(line, "the row")
        try:
            return self._decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if line.startswith(_BOM):
                return self.decode(line[len(_BOM) :])
            raise _rejected(error, line) from None

    def convert(self, row: Mapping[str, Any]) -> RowT:
        """Convert a decoded row, such as one of Parquet or Arrow, to the type that `decode` returns.

        Nulls that Arrow adds for keys of other rows are dropped from the format's nested columns.

        Raises:
            RowRejectedError: `invalid_utf8` (a lone surrogate), `not_an_object`, `missing_key`, `wrong_type` or
                `too_deep`.
        """
        try:
            found = {name: pruned(row[name]) for name in self._nested if name in row}
        except RecursionError as error:
            raise _rejected(error, b"") from None
        return self.typed({**row, **found} if found else row)

    def typed(self, row: Mapping[str, Any]) -> RowT:
        """Like `convert`, but keeps every null: for rows that were never in Arrow."""
        try:
            converted = msgspec.convert(row, self._row_type)
            # The only fast way to find lone surrogates, which UTF-8 cannot encode.
            check_depth(msgspec.json.encode(converted), "the row")
        except UnicodeEncodeError as error:
            raise RowRejectedError("invalid_utf8", _not_utf8(error)) from None
        except (msgspec.ValidationError, RecursionError) as error:
            raise _rejected(error, b"") from None
        except (TypeError, OverflowError, ValueError) as error:
            raise RowRejectedError("wrong_type", f"a value has no form in JSON: {error}") from None
        return converted

    def prepare(self, lines: Iterable[tuple[int, bytes]]) -> PreparedBlock:
        """Turn lines of JSON into examples; never raises because of a line's content.

        Args:
            lines: (line number, its bytes, with or without the line end).
        """
        return self._prepare(lines, self.decode)

    def prepare_rows(self, rows: Iterable[tuple[int, Mapping[str, Any]]]) -> PreparedBlock:
        """Like `prepare`, for pairs of (row number, decoded row)."""
        return self._prepare(rows, self.convert)

    def _prepare(self, items: Iterable[tuple[int, _Item]], parse: Callable[[_Item], RowT]) -> PreparedBlock:
        examples: list[Example] = []
        rejects: list[tuple[int, str, str]] = []
        filtered: Counter[str] = Counter()
        skipped: Counter[str] = Counter()
        rows = blank = 0
        for line, item in items:
            if isinstance(item, bytes) and (not item or item.isspace()):
                blank += 1
                continue
            rows += 1
            try:
                examples += self.weighted(parse(item), line, skipped)
            except RowRejectedError as error:
                rejects.append((line, error.reason, error.detail))
            except RowFilteredError as error:
                filtered[error.reason] += 1
        return PreparedBlock(examples, rejects, filtered, skipped, rows, blank)


def _weighted(row_type: type[RowT], options: Options) -> type[RowT]:
    """The type of rows that also have a weight.

    Raises:
        ConfigError: the format itself reads that column.
    """
    try:
        made = msgspec.defstruct(
            row_type.__name__,
            [(WEIGHT, Any)],
            bases=(row_type,),
            rename={WEIGHT: str(options.weight_key)},
            kw_only=True,
        )
    except ValueError:
        raise ConfigError(
            f"prep option weight_key={options.weight_key!r}: the format reads this column as something else; name "
            "another one"
        ) from None
    return cast(type[RowT], made)


def _rejected(error: Exception, line: bytes) -> RowRejectedError:
    """Translate a decoder's error into a rejection."""
    if isinstance(error, RecursionError):
        return RowRejectedError(TOO_DEEP, f"the row nests more than {MAX_DEPTH} lists and objects within one another")
    if isinstance(error, msgspec.ValidationError):
        what, path = _MISMATCH.fullmatch(str(error)).groups()  # type: ignore[union-attr]  # matches any text
        if missing := _MISSING.fullmatch(what):
            return RowRejectedError("missing_key", f"the row has no `{missing[1]}`{_but_has(line)}")
        if not path:
            return RowRejectedError("not_an_object", what[:1].lower() + what[1:])
        return RowRejectedError("wrong_type", f"`{path}`: {what[:1].lower()}{what[1:]}")
    try:
        line.decode()
    except UnicodeDecodeError as broken:
        return RowRejectedError("invalid_utf8", f"byte {broken.start} of the line: {broken.reason}")
    if "truncated" in str(error):
        return RowRejectedError("invalid_json", _cut_short(line))
    return RowRejectedError("invalid_json", str(error))


def _not_utf8(error: UnicodeEncodeError) -> str:
    """Python keeps an undecodable byte in a text as half of a surrogate pair."""
    code = ord(error.object[error.start])
    if 0xDC80 <= code <= 0xDCFF:
        byte = f"0x{code - 0xDC00:02x}"
        return f"a text holds the byte {byte}, which is not UTF-8; `iconv -t UTF-8` converts other encodings"
    return f"a text holds half of a surrogate pair ({error})"


def _but_has(line: bytes) -> str:
    """Names the keys that the row has instead; "" if the line is not available."""
    try:
        row = msgspec.json.decode(line.removeprefix(_BOM), type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeError):
        return ""
    names = [f"`{name}`" for name in row]
    return f"; it has {', '.join(names[:8])}{', …' if len(names) > 8 else ''}" if names else ""


def _cut_short(line: bytes) -> str:
    # msgspec calls a lone surrogate a truncated input; the standard library lets it pass.
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return "the line ends in the middle of its JSON"
    return "a text holds half of a surrogate pair, such as \\ud83d alone"
