"""Alpaca: an instruction, an optional input, and the output. One example per row."""

from collections import Counter
from typing import Any, ClassVar

from ...schemas.errors import RowRejectedError
from ...schemas.rows import Example, Messages
from .base import Format
from .columns import CHAT_COLUMNS, Column, Columns
from .messages import conversation, is_blank, turn, with_system


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
        **CHAT_COLUMNS,
    }
    # The prompt with which Stanford trained Alpaca is not written: a chat template has its own words around a question.
    default_style = "chat"

    def examples(self, row: Any, line: int, skipped: Counter[str]) -> list[Example]:
        """One conversation; with `per_turn`, one for each answer in it.

        Rejects `empty`, `empty_completion`, `wrong_type`, `two_systems`.
        """
        question = "\n".join(text for text in (row.instruction, row.input) if text)
        if not question:
            raise RowRejectedError("empty", f"`{self.keys['instruction']}` is empty")
        if is_blank(row.output):
            raise RowRejectedError("empty_completion", f"`{self.keys['output']}` is empty")
        messages: Messages = []
        for earlier_question, earlier_answer in row.history or []:
            messages += [turn("user", earlier_question), turn("assistant", earlier_answer)]
        messages += [turn("user", question), turn("assistant", row.output)]
        # The messages come from several columns. No error names these: it would need messages that begin with a system
        # text, and these begin with a question.
        messages = with_system(messages, row, self.keys, messages_key="")
        return conversation(messages, row.tools, line, per_turn=self.options.per_turn, skipped=skipped)
