"""Alpaca: an instruction, an optional input, and the output. One example per row."""

from collections import Counter
from typing import Any, ClassVar

from ...schemas.errors import RowRejectedError
from ...schemas.rows import Example, Messages
from .base import Column, Columns, Format
from .conversation import is_blank, turn


class AlpacaFormat(Format):
    """Instruction rows as conversations; a line break separates instruction and input, as in LLaMA-Factory."""

    name = "alpaca"
    columns: ClassVar[Columns] = {
        "instruction": Column(str, required=True),
        "output": Column(str, required=True),
        "input": Column(str | None),
        "system": Column(str | None),
        "history": Column(Any),
    }
    default_style = "chat"

    def examples(self, row: Any, line: int, skipped: Counter[str] | None = None) -> list[Example]:
        """See `Format.examples`. Rejects `empty`, `empty_completion`, `wrong_type` (earlier turns)."""
        asked = "\n".join(text for text in (row.instruction, row.input) if text)
        if not asked:
            raise RowRejectedError("empty", f"`{self.keys['instruction']}` is empty")
        if is_blank(row.output):
            raise RowRejectedError("empty_completion", f"`{self.keys['output']}` is empty")
        if row.history:
            raise RowRejectedError("wrong_type", "`history` holds earlier turns, which are not read; give messages")
        opening: Messages = [turn("system", row.system)] if row.system else []
        return [Example(line, -1, "", [*opening, turn("user", asked)], [turn("assistant", row.output)], None)]
