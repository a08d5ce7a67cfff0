"""A user's own reader: a function from any row to rows in one of packtrain's formats.

The module's source is an option, so every worker runs exactly what was hashed. Modules that it imports are not hashed.
"""

import sys
import traceback
import types
from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, ClassVar

import msgspec

from ...schemas.errors import ConfigError, RowFilteredError, RowRejectedError
from ...schemas.fingerprint import short_hash
from ...schemas.rows import Example
from .base import Format, Options, ReaderCode
from .columns import Columns, check_weight
from .messages import MessagesFormat
from .preference import PreferenceFormat
from .prompt_completion import PromptCompletionFormat
from .rowjson import require_shallow
from .sharegpt import ShareGPTFormat
from .text_and_ids import TextFormat, TokenizedFormat

Reader = Callable[[dict[str, Any]], Any]

# `input_ids` first, because tokens beside a text are that text already; `chosen` before `prompt`, which pairs may have.
_FORMS: dict[str, type[Format]] = {
    "input_ids": TokenizedFormat,
    "chosen": PreferenceFormat,
    "messages": MessagesFormat,
    "conversations": ShareGPTFormat,
    "prompt": PromptCompletionFormat,
    "text": TextFormat,
}
"""The format of a result, by the key that decides. The first that a result has is used."""
_DETAIL_CHARACTERS = 300
"""Characters of an error's text that are shown."""


class ReaderFormat(Format):
    """Rows from a user's function, which may return one row, a list, or None to filter the row."""

    name = "python"
    columns: ClassVar[Columns] = {}

    def __init__(self, options: Options | None = None) -> None:
        super().__init__(options)
        self._row_type = dict[str, Any]
        self._decoder = msgspec.json.Decoder(self._row_type)
        # Columns of results have their usual names: `keys` is not for readers.
        options_of_results = Options(per_turn=self.options.per_turn)
        self._forms = {key: format_type(options_of_results) for key, format_type in _FORMS.items()}
        # One counter: `prepare` of this format reports what those of the results did not read.
        for form in self._forms.values():
            form.unread = self.unread
        # One that is only to decode objects, as before a source's format is known, has no reader.
        self._reader = self.options.reader or ReaderCode(function="", code="")
        # For errors, the name of the file without its folder.
        self._file = self._reader.path.replace("\\", "/").rsplit("/", 1)[-1]

    @property
    def is_plain(self) -> bool:
        """False: only the function knows whether it returns conversations."""
        return False

    def _checked(self, row: dict[str, Any]) -> dict[str, Any]:
        """The same row, if it does not nest too deeply: no columns are known that could be checked."""
        require_shallow(row, "the row")
        return row

    def examples(self, row: dict[str, Any], line: int, skipped: Counter[str]) -> list[Example]:
        """The examples of all rows that the user's function returns for a row.

        Rejects `reader_error` (the function raised an error) and `reader_result` (its result cannot be used); filters
        `not_wanted` (it returned nothing).

        Raises:
            ConfigError: the module cannot be run, or has no such function.
        """
        result = self._read(row)
        is_list = isinstance(result, list | tuple)
        if result is None or (is_list and not result):
            raise RowFilteredError("not_wanted")
        result_rows = result if is_list else [result]
        examples: list[Example] = []
        for index, result_row in enumerate(result_rows):
            try:
                examples += self._examples(result_row, line, skipped)
            except RowRejectedError as error:
                which = f"[{index}]" if is_list else ""
                where = f"{self._file}, {self._reader.function}()"
                raise RowRejectedError("reader_result", f"{where}, result{which}: {error}") from None
        if not is_list and len(examples) == 1:
            return examples
        # The number distinguishes several examples of a row.
        return [example._replace(sub=sub) for sub, example in enumerate(examples)]

    def _read(self, row: dict[str, Any]) -> Any:
        """What the user's function returns for a row.

        Raises:
            RowRejectedError: `reader_error`.
            ConfigError: the module cannot be run, or has no such function.
        """
        read = reader_of(self._reader)
        try:
            return read(row)
        except MemoryError:
            raise  # which depends on the machine, so that it must not decide what becomes of a row
        except (Exception, SystemExit) as error:
            raise RowRejectedError("reader_error", self._complaint(error)) from None

    def _examples(self, row: Any, line: int, skipped: Counter[str]) -> list[Example]:
        """The examples of one row of a result, by the format of its deciding key."""
        form, decisive = self._form_of(row)
        group = row.get("group", "")
        if not isinstance(group, str):
            raise RowRejectedError("wrong_type", f"`group` must be a string, got {type(group).__name__}")
        weight = check_weight(row.get("weight"), "weight")
        # With the key `chosen`, the row is a pair. A preference loss is over both of its answers: nothing says what a
        # weight would do to their difference.
        if weight != 1 and decisive == "chosen":
            raise RowRejectedError("weight", "pairs of answers have no weights")
        examples = form.complete_examples(form.convert(row), line, skipped)
        if not group and weight == 1:
            return examples
        return [example._replace(group=group or example.group, weight=weight) for example in examples]

    def _form_of(self, row: Any) -> tuple[Format, str]:
        """The format of a row of a result, and the key that decides it. Unlike a file, whose other columns are counted
        as not read, a function is somebody's own code: a key that nothing reads is a mistake in it.
        """
        if not isinstance(row, Mapping):
            raise RowRejectedError("wrong_type", f"a row is a dict, or a list of dicts, got {type(row).__name__}")
        decisive = next((key for key in _FORMS if key in row), None)
        if decisive is None:
            keys = ", ".join(f"`{key}`" for key in row) or "no key"
            raise RowRejectedError(
                "missing_key", f"a row has one of {', '.join(f'`{key}`' for key in _FORMS)}; this has {keys}"
            )
        form = self._forms[decisive]
        usable_keys = {*form.keys.values(), "group", "weight"}
        for key in row:
            if key not in usable_keys:
                names = ", ".join(sorted(usable_keys))
                raise RowRejectedError("unknown_key", f"a row with `{decisive}` has no `{key}`; it may have {names}")
        return form, decisive

    def _complaint(self, error: BaseException) -> str:
        """An error with its line and function in the module: "reader.py, line 7, in read: KeyError: 'text'"."""
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == self._reader.path]
        place = self._file
        # The last frame in the module is the innermost; none is there if the call itself failed.
        if frames:
            place += f", line {frames[-1].lineno}, in {frames[-1].name}"
        complaint = f"{place}: {type(error).__name__}"
        text = str(error)
        return f"{complaint}: {text[:_DETAIL_CHARACTERS]}" if text else complaint


def reader_of(reader: ReaderCode) -> Reader:
    """The reader function; its module runs once per process.

    Raises:
        ConfigError: the module cannot be run, or has no such function.
    """
    function = getattr(_module(reader.code, reader.path, reader.folder), reader.function, None)
    if not callable(function):
        state = "is not a function" if function is not None else "is not in it"
        raise ConfigError(f"{reader.path}: {reader.function} {state}; format is written python:module:function")
    return function  # type: ignore[no-any-return]


# More than one is kept: a worker takes blocks of several sources, each with a reader of its own.
@lru_cache(maxsize=8)
def _module(code: str, path: str, folder: str) -> types.ModuleType:
    """The module of a reader, run once in a process. Arguments are the fields of `ReaderCode`.

    Raises:
        ConfigError: it does not compile, or raises an error while it is run.
    """
    # Not under its own name, because another module may have that name.
    name = f"_packtrain_reader_{short_hash(code.encode(), size=8)}"
    module = types.ModuleType(name)
    module.__file__ = path
    if folder and folder not in sys.path:
        sys.path.append(folder)  # last, so that the user's files hide no other module
    sys.modules[name] = module  # dataclasses and the like look their module up
    try:
        exec(compile(code, path, "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        line = _line_of(error, path)
        place = f"{path}, line {line}" if line else path
        raise ConfigError(f"{place}: the reader cannot be loaded: {type(error).__name__}: {error}") from error
    return module


def _line_of(error: BaseException, path: str) -> int | None:
    """The last line of a module that an error passed through, or at which it does not compile; None if neither."""
    line = error.lineno if isinstance(error, SyntaxError) else None
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == path:
            line = frame.lineno
    return line
