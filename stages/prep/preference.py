"""Preference data: a prompt with a chosen and a rejected answer. One example per row."""

from collections import Counter
from typing import Any, ClassVar

from ...schemas.errors import RowRejectedError
from ...schemas.rows import Example, Messages
from .base import Column, Columns, Format
from .message_checks import check_messages
from .messages import (
    DECIDES_TRAINING,
    FUNCTIONS,
    MEDIA,
    SYSTEM,
    TEMPLATE_INPUTS,
    TOOLS,
    is_blank,
    require_answer,
    require_no_parts_of_a_chat,
    system_of,
    turn,
    with_system,
)

_ANSWER = str | list[dict[str, Any]] | dict[str, Any]


class PreferenceFormat(Format):
    """Pairs of answers: texts, or messages.

    If the answers are messages and the prompt is missing or a text, the messages that both begin with are the prompt,
    as in `trl.extract_prompt`. If they have no message in common and the prompt is a text, it becomes the user's turn.
    Prompt messages that both answers repeat are removed from them. An answer that is one message is a list of it.
    """

    name = "preference"
    columns: ClassVar[Columns] = {
        "prompt": Column(_ANSWER | None, nested=True),
        "chosen": Column(_ANSWER, required=True, nested=True),
        "rejected": Column(_ANSWER, required=True, nested=True),
        "tools": TOOLS,
        **SYSTEM,
        **FUNCTIONS,
        **MEDIA,
        **TEMPLATE_INPUTS,
        **DECIDES_TRAINING,
    }
    values = "lists of messages, or texts beside a prompt"

    def examples(self, row: Any, line: int, skipped: Counter[str]) -> list[Example]:
        """See `Format.examples`.

        Rejects `empty_completion`, `no_preference` (equal answers), `no_prompt`, `wrong_type`, and what
        `check_messages` rejects.
        """
        keys = self.keys
        prompt, chosen, rejected = (self._read(row, name) for name in ("prompt", "chosen", "rejected"))
        for name, answer in (("chosen", chosen), ("rejected", rejected)):
            if not answer:
                raise RowRejectedError("empty_completion", f"`{keys[name]}` is empty")
        texts = isinstance(chosen, str)
        if isinstance(rejected, str) != texts or (texts and isinstance(prompt, list)):
            names = ", ".join(f"`{keys[name]}`" for name in self.columns if name in ("prompt", "chosen", "rejected"))
            raise RowRejectedError("wrong_type", f"{names} must be of one kind: texts, or lists of messages")
        if chosen == rejected:
            raise RowRejectedError("no_preference", f"`{keys['chosen']}` and `{keys['rejected']}` are the same")
        if not texts:
            prompt, chosen, rejected = _conversation(prompt, chosen, rejected)
        elif prompt is None:
            cut = _common_text(chosen, rejected)
            prompt = chosen[:cut]
            chosen = chosen[cut:]
            rejected = rejected[cut:]
        for name, answer in (("chosen", chosen), ("rejected", rejected)):
            if is_blank(answer):
                raise RowRejectedError("empty_completion", f"`{keys[name]}` holds nothing after the prompt")
            if not texts:
                require_answer(answer, keys[name])
        if not prompt:
            raise RowRejectedError(
                "no_prompt",
                f"there is no `{keys['prompt']}`, and `{keys['chosen']}` and `{keys['rejected']}` have no "
                "beginning in common; name the column of the prompt (keys: {prompt: question})",
            )
        if not texts or self.style == "chat":
            prompt = with_system(
                [turn("user", prompt)] if isinstance(prompt, str) else prompt, system_of(row, keys), keys["prompt"]
            )
        else:
            require_no_parts_of_a_chat(row, keys)
        if texts and self.style == "chat":
            chosen = [turn("assistant", chosen)]
            rejected = [turn("assistant", rejected)]
        return [Example(line, -1, "", prompt, chosen, None, row.tools, rejected=rejected)]

    def _read(self, row: Any, name: str) -> Any:
        value = getattr(row, name)
        messages = [value] if isinstance(value, dict) else value  # Axolotl and LLaMA-Factory write one message so
        return check_messages(messages, self.keys[name], self.unread) if isinstance(messages, list) else messages


def _conversation(
    prompt: Messages | str | None, chosen: Messages, rejected: Messages
) -> tuple[Messages, Messages, Messages]:
    """The prompt's messages, and those of each answer after it."""
    if isinstance(prompt, list):
        size = len(prompt)
        repeated = size and chosen[:size] == prompt == rejected[:size]
        return (prompt, chosen[size:], rejected[size:]) if repeated else (prompt, chosen, rejected)
    shorter = min(len(chosen), len(rejected))
    # Where one answer is the beginning of the other, its last message stays an answer: each has one at least.
    cut = next((i for i in range(shorter) if chosen[i] != rejected[i]), shorter - 1)
    if not cut and prompt:
        return [turn("user", prompt)], chosen, rejected
    return chosen[:cut], chosen[cut:], rejected[cut:]


def _common_text(chosen: str, rejected: str) -> int:
    """Count the characters that both begin with; a space at their end belongs to the answers."""
    shorter = min(len(chosen), len(rejected))
    cut = next((i for i in range(shorter) if chosen[i] != rejected[i]), shorter)
    if cut == shorter:
        return max(shorter - 1, 0)
    return cut - 1 if cut and chosen[cut - 1] == " " else cut
