"""Plain text for language modelling: one document and one example per row."""

from collections import Counter
from typing import Any, ClassVar

from ...schemas.errors import RowRejectedError
from ...schemas.rows import Example
from .base import Format
from .columns import MEDIA, Column, Columns


class TextFormat(Format):
    """Documents, kept unchanged, including whitespace at the ends."""

    name = "text"
    columns: ClassVar[Columns] = {"text": Column(str, required=True), **MEDIA}
    values = "a text"

    def examples(self, row: Any, line: int, skipped: Counter[str]) -> list[Example]:
        """See `Format.examples`. Rejects `empty`."""
        if not row.text:
            raise RowRejectedError("empty", f"`{self.keys['text']}` is empty")
        return [Example(line, -1, "", None, None, row.text)]
