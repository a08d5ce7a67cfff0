"""Alpaca: an instruction, an optional input, and the output. One example per row."""

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar, Protocol, cast

import msgspec

from ...schemas.errors import RowRejectedError
from ...schemas.rows import Example, Messages
from .base import Format, Options, PublicForm
from .conversation import Style, is_blank, turn
from .rowjson import decode_json
from .turns import per_turn

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


@dataclass(frozen=True, kw_only=True)
class AlpacaOptions(Options):
    """Column names, and how the parts are joined."""

    instruction_key: str = "instruction"
    input_key: str = "input"
    """Column of the input; rows may lack it, as they may lack the next two columns."""
    output_key: str = "output"
    history_key: str = "history"
    system_key: str = "system"
    style: Style = "chat"
    """`chat`: a user's and an assistant's turn. `plain`: the text of Stanford Alpaca."""
    per_turn: bool = False
    """One example for each assistant turn, including those of `history`."""


class AlpacaRow(Protocol):
    """A row with an instruction and its output."""

    instruction: str
    output: str
    input: str | None
    history: list[list[str]] | str | None
    system: str | None


class AlpacaFormat(Format[AlpacaOptions, AlpacaRow]):
    """Instruction rows. In a conversation, `history` comes first, and a line break separates instruction and input, as
    in LLaMA-Factory. As plain text, the prompt is exactly Stanford Alpaca's.
    """

    name: ClassVar[str] = "alpaca"
    options_type: ClassVar[type[Options]] = AlpacaOptions

    def __init__(self, options: AlpacaOptions | None = None) -> None:
        options = options or AlpacaOptions()
        names = ("instruction", "output", "input", "history", "system")
        row_type = msgspec.defstruct(
            "AlpacaRow",
            [
                ("instruction", str),
                ("output", str),
                ("input", str | None, None),
                ("history", list[list[str]] | str | None, None),
                ("system", str | None, None),
            ],
            rename={name: getattr(options, f"{name}_key") for name in names},
        )
        super().__init__(options, cast(type[AlpacaRow], row_type))

    @property
    def form(self) -> PublicForm:
        return "prompt_completion"

    def examples(self, row: AlpacaRow, line: int, skipped: Counter[str] | None = None) -> list[Example]:
        """See `Format.examples`. Rejects `empty`, `empty_completion`, `wrong_type`, and `not_plain` for values that the
        plain text cannot hold."""
        options = self.options
        if not row.instruction and not row.input:
            raise RowRejectedError("empty", f"`{options.instruction_key}` is empty")
        if is_blank(row.output):
            raise RowRejectedError("empty_completion", f"`{options.output_key}` is empty")
        history = row.history
        if isinstance(history, str):  # JSON text, as in a CSV cell
            where = f"`{options.history_key}`"
            kind = list[list[str]] | None
            history = decode_json(history, where, kind, what="a JSON list of pairs") if history.strip() else None
        if options.style == "plain":
            return [Example(line, -1, "", self._plain(row, history), row.output, None)]
        prompt: Messages = [turn("system", row.system)] if row.system else []
        for index, pair in enumerate(history or []):
            if len(pair) != 2:
                where = f"`{options.history_key}[{index}]`"
                raise RowRejectedError("wrong_type", f"{where} must be a pair of texts, got {len(pair)}")
            prompt += [turn("user", pair[0]), turn("assistant", pair[1])]
        asked = "\n".join(text for text in (row.instruction, row.input) if text)
        prompt.append(turn("user", asked))
        example = Example(line, -1, "", prompt, [turn("assistant", row.output)], None)
        return per_turn(example, 0, skipped) if options.per_turn else [example]

    def _plain(self, row: AlpacaRow, history: list[list[str]] | None) -> str:
        for key, value in ((self.options.history_key, history), (self.options.system_key, row.system)):
            if value:
                raise RowRejectedError("not_plain", f"the plain text has no place for `{key}`; take style: chat")
        text = _WITH_INPUT if row.input else _WITHOUT_INPUT
        # Not str.format: the data may contain braces.
        before, _, after = text.partition("{instruction}")
        return before + row.instruction + after.replace("{input}", row.input or "", 1)
