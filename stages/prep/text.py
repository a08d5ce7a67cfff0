"""Plain text for language modelling: one document and one example per row."""

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar, Protocol, cast

import msgspec

from ...schemas.errors import RowRejectedError
from ...schemas.rows import Example
from .base import Format, Options, PublicForm


@dataclass(frozen=True, kw_only=True)
class TextOptions(Options):
    """Column name."""

    text_key: str = "text"


class TextRow(Protocol):
    """A row with one text."""

    text: str


class TextFormat(Format[TextOptions, TextRow]):
    """Documents, kept unchanged, including whitespace at the ends."""

    name: ClassVar[str] = "text"
    options_type: ClassVar[type[Options]] = TextOptions

    def __init__(self, options: TextOptions | None = None) -> None:
        options = options or TextOptions()
        row_type = msgspec.defstruct("TextRow", [("text", str)], rename={"text": options.text_key})
        super().__init__(options, cast(type[TextRow], row_type))

    @property
    def form(self) -> PublicForm:
        return "text"

    def examples(self, row: TextRow, line: int, skipped: Counter[str] | None = None) -> list[Example]:
        """See `Format.examples`. Rejects `empty`."""
        if not row.text:
            raise RowRejectedError("empty", f"`{self.options.text_key}` is empty")
        return [Example(line, -1, "", None, None, row.text)]
