"""Alpaca: an instruction, an optional input, and the output. One example per row."""

from collections import Counter
from typing import Any, ClassVar

from ...schemas.errors import RowRejectedError
from ...schemas.rows import Example, Messages
from .base import Column, Columns, Format
from .messages import (
    DECIDES_TRAINING,
    FUNCTIONS,
    MEDIA,
    SYSTEM,
    TEMPLATE_INPUTS,
    TOOLS,
    conversation,
    is_blank,
    system_of,
    turn,
    with_system,
)


class AlpacaFormat(Format):
    """Instruction rows as conversations: `history` comes first, and a line break separates instruction and input, as in
    LLaMA-Factory.
    """

    name = "alpaca"
    columns: ClassVar[Columns] = {
        "instruction": Column(str, required=True),
        "output": Column(str, required=True),
        "input": Column(str | None),
        "history": Column(list[tuple[str, str]] | None, cell="a JSON list of pairs"),
        "tools": TOOLS,
        **SYSTEM,
        **FUNCTIONS,
        **MEDIA,
        **TEMPLATE_INPUTS,
        **DECIDES_TRAINING,
    }
    default_style = "chat"

    def examples(self, row: Any, line: int, skipped: Counter[str]) -> list[Example]:
        """See `Format.examples`. Rejects `empty`, `empty_completion`, `wrong_type`, `two_systems`."""
        asked = "\n".join(text for text in (row.instruction, row.input) if text)
        if not asked:
            raise RowRejectedError("empty", f"`{self.keys['instruction']}` is empty")
        if is_blank(row.output):
            raise RowRejectedError("empty_completion", f"`{self.keys['output']}` is empty")
        messages: Messages = with_system([], system_of(row, self.keys), "")
        for before, answer in row.history or []:
            messages += [turn("user", before), turn("assistant", answer)]
        messages += [turn("user", asked), turn("assistant", row.output)]
        return conversation(messages, row.tools, line, per_turn=self.options.per_turn, skipped=skipped)
