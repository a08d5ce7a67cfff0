"""Prompt and completion, each a text or a list of messages. One example per row."""

from collections import Counter
from typing import Any, ClassVar

from ...schemas.errors import RowRejectedError
from ...schemas.rows import Example
from .base import Column, Columns, Format
from .message_checks import check_messages
from .messages import (
    DECIDES_TRAINING,
    FUNCTIONS,
    MEDIA,
    SYSTEM,
    TEMPLATE_INPUTS,
    TOOLS,
    conversation,
    is_blank,
    require_answer,
    require_no_parts_of_a_chat,
    system_of,
    turn,
    with_system,
)

_EITHER = str | list[dict[str, Any]]


class PromptCompletionFormat(Format):
    """Prompts and completions, kept unchanged."""

    name = "prompt_completion"
    columns: ClassVar[Columns] = {
        "prompt": Column(_EITHER, required=True, nested=True),
        "completion": Column(_EITHER, required=True, nested=True),
        "tools": TOOLS,
        **SYSTEM,
        **FUNCTIONS,
        **MEDIA,
        **TEMPLATE_INPUTS,
        **DECIDES_TRAINING,
    }
    values = "both texts or both lists of messages"

    def read_columns(self) -> dict[str, str]:
        """See `Format.read_columns`."""
        names = super().read_columns()
        if self.options.prompt_only:  # the decoder skips the values of other columns, without parsing them
            del names["completion"]
        return names

    def examples(self, row: Any, line: int, skipped: Counter[str]) -> list[Example]:
        """See `Format.examples`.

        Rejects `empty_completion`, `empty` (an empty prompt with `prompt_only`), and what `check_messages` rejects.
        """
        keys = self.keys
        prompt: Any = row.prompt
        completion: Any
        if self.options.prompt_only:
            if not prompt:
                raise RowRejectedError("empty", f"`{keys['prompt']}` is empty")
            completion = "" if isinstance(prompt, str) else []
        else:
            completion = row.completion
            if isinstance(prompt, str) != isinstance(completion, str):
                names = f"`{keys['prompt']}` and `{keys['completion']}`"
                raise RowRejectedError("wrong_type", f"{names} must be of one kind: texts, or lists of messages")
            if is_blank(completion):
                raise RowRejectedError("empty_completion", f"`{keys['completion']}` is empty")
        if isinstance(prompt, str):
            if self.style == "chat":
                prompt = [turn("user", prompt)] if prompt else []
                prompt = with_system(prompt, system_of(row, keys), keys["prompt"])
                completion = [turn("assistant", completion)] if completion else []
            else:
                require_no_parts_of_a_chat(row, keys)
            return [Example(line, -1, "", prompt, completion, None, row.tools)]
        messages = check_messages(prompt, keys["prompt"], self.unread)
        messages = with_system(messages, system_of(row, keys), keys["prompt"])
        answers = []
        if completion:
            answers = check_messages(completion, keys["completion"], self.unread)
            require_answer(answers, keys["completion"])
        return conversation(
            messages + answers, row.tools, line, per_turn=self.options.per_turn, skipped=skipped, start=len(messages)
        )
