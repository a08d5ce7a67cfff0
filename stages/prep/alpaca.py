"""Alpaca: an instruction, an optional input, and the output. One example per row."""

from collections import Counter
from typing import Any, ClassVar

from ...schemas.errors import RowRejectedError
from ...schemas.rows import Example, Messages
from .base import Column, Columns, Format
from .conversation import conversation, is_blank, turn
from .rowjson import decode_json

_WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further context. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n"
)
_WITHOUT_INPUT = (
    "Below is an instruction that describes a task. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Response:\n"
)


class AlpacaFormat(Format):
    """Instruction rows. In a conversation, `history` comes first, and a line break separates instruction and input, as
    in LLaMA-Factory. As plain text, the prompt is exactly Stanford Alpaca's.
    """

    name = "alpaca"
    columns: ClassVar[Columns] = {
        "instruction": Column(str, required=True),
        "output": Column(str, required=True),
        "input": Column(str | None),
        "history": Column(list[list[str]] | str | None),
        "system": Column(str | None),
    }
    default_style = "chat"

    def examples(self, row: Any, line: int, skipped: Counter[str] | None = None) -> list[Example]:
        """See `Format.examples`. Rejects `empty`, `empty_completion`, `wrong_type`, and `not_plain` for values that the
        plain text cannot hold."""
        keys = self.keys
        if not row.instruction and not row.input:
            raise RowRejectedError("empty", f"`{keys['instruction']}` is empty")
        if is_blank(row.output):
            raise RowRejectedError("empty_completion", f"`{keys['output']}` is empty")
        history = row.history
        if isinstance(history, str):  # JSON text, as in a CSV cell
            kind, where = list[list[str]] | None, f"`{keys['history']}`"
            history = decode_json(history, where, kind, what="a JSON list of pairs") if history.strip() else None
        if self.style != "chat":
            return [Example(line, -1, "", self._plain(row, history), row.output, None)]
        messages: Messages = [turn("system", row.system)] if row.system else []
        for index, pair in enumerate(history or []):
            if len(pair) != 2:
                where = f"`{keys['history']}[{index}]`"
                raise RowRejectedError("wrong_type", f"{where} must be a pair of texts, got {len(pair)}")
            messages += [turn("user", pair[0]), turn("assistant", pair[1])]
        asked = "\n".join(text for text in (row.instruction, row.input) if text)
        messages += [turn("user", asked), turn("assistant", row.output)]
        return conversation(messages, None, line, per_turn=self.options.per_turn, skipped=skipped)

    def _plain(self, row: Any, history: list[list[str]] | None) -> str:
        for key, value in (("history", history), ("system", row.system)):
            if value:
                raise RowRejectedError(
                    "not_plain", f"the plain text has no place for `{self.keys[key]}`; take style: chat"
                )
        text = _WITH_INPUT if row.input else _WITHOUT_INPUT
        # Not str.format: the data may contain braces.
        before, _, after = text.partition("{instruction}")
        return before + str(row.instruction) + after.replace("{input}", row.input or "", 1)
