"""Prompt and completion, each a text or a list of messages. One example per row."""

from collections import Counter
from typing import Any, ClassVar

from ...schemas.errors import RowRejectedError
from ...schemas.rows import Example
from .base import Format
from .columns import CHAT_COLUMNS, Column, Columns
from .message_checks import check_messages
from .messages import conversation, is_blank, require_answer, require_no_parts_of_a_chat, turn, with_system

_EITHER = str | list[dict[str, Any]]
"""A text, or a list of messages."""


class PromptCompletionFormat(Format):
    """Prompts and completions, kept unchanged."""

    name = "prompt_completion"
    columns: ClassVar[Columns] = {
        "prompt": Column(_EITHER, required=True, nested=True),
        "completion": Column(_EITHER, required=True, nested=True),
        **CHAT_COLUMNS,
    }
    values = "both texts or both lists of messages"

    def read_columns(self) -> dict[str, str]:
        """The name of each column that is read, by field; without the completion, if only prompts are wanted."""
        names = super().read_columns()
        if self.options.prompt_only:
            # So the decoder skips it without parsing it, and a row need not have it.
            del names["completion"]
        return names

    def examples(self, row: Any, line: int, skipped: Counter[str]) -> list[Example]:
        """One example; with `per_turn`, one for each answer in a completion of messages.

        Rejects `empty_completion`, `empty` (an empty prompt with `prompt_only`), and what `check_messages` rejects.
        """
        completion = self._completion_of(row)
        if isinstance(row.prompt, str):
            return [self._text_example(row, completion, line)]
        prompt_key = self.keys["prompt"]
        prompt = check_messages(row.prompt, prompt_key, self.unread)
        # Before `len(prompt)` below says where the completion starts: it may add a message.
        prompt = with_system(prompt, row, self.keys, prompt_key)
        answers = []
        if completion:
            answers = check_messages(completion, self.keys["completion"], self.unread)
            require_answer(answers, self.keys["completion"])
        return conversation(
            prompt + answers, row.tools, line, per_turn=self.options.per_turn, skipped=skipped, start=len(prompt)
        )

    def _completion_of(self, row: Any) -> Any:
        """The completion, of the same kind as the prompt; an empty one with `prompt_only`."""
        keys = self.keys
        if self.options.prompt_only:
            if not row.prompt:
                raise RowRejectedError("empty", f"`{keys['prompt']}` is empty")
            return "" if isinstance(row.prompt, str) else []
        if isinstance(row.prompt, str) != isinstance(row.completion, str):
            names = f"`{keys['prompt']}` and `{keys['completion']}`"
            raise RowRejectedError("wrong_type", f"{names} must be of one kind: texts, or lists of messages")
        if is_blank(row.completion):
            raise RowRejectedError("empty_completion", f"`{keys['completion']}` is empty")
        return row.completion

    def _text_example(self, row: Any, completion: str, line: int) -> Example:
        """The example of two texts, which become turns in the style `chat`."""
        if self.style != "chat":
            require_no_parts_of_a_chat(row, self.keys)
            return Example(line, sub=-1, group="", prompt=row.prompt, completion=completion, text=None, tools=row.tools)
        # An empty text makes no turn: a template would write an empty question, which the row does not have.
        prompt = [turn("user", row.prompt)] if row.prompt else []
        prompt = with_system(prompt, row, self.keys, self.keys["prompt"])
        answer = [turn("assistant", completion)] if completion else []
        return Example(line, sub=-1, group="", prompt=prompt, completion=answer, text=None, tools=row.tools)
