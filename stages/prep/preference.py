"""Preference data: a prompt with a chosen and a rejected answer. One example per row."""

from collections import Counter
from typing import Any, ClassVar

from ...schemas.errors import RowRejectedError
from ...schemas.rows import Example, Messages
from .base import Format
from .columns import CHAT_COLUMNS, Column, Columns
from .message_checks import check_messages
from .messages import is_blank, require_answer, require_no_parts_of_a_chat, turn, with_system

_ANSWER = str | list[dict[str, Any]] | dict[str, Any]
"""A text, a list of messages, or one message."""


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
        **CHAT_COLUMNS,
    }
    values = "lists of messages, or texts beside a prompt"

    def examples(self, row: Any, line: int, skipped: Counter[str]) -> list[Example]:
        """One example, the pair.

        Rejects `empty_completion`, `no_preference` (equal answers), `no_prompt`, `wrong_type`, and what
        `check_messages` rejects.
        """
        prompt = self._read(row, "prompt")
        chosen = self._read(row, "chosen")
        rejected = self._read(row, "rejected")
        self._require_a_pair(prompt, chosen, rejected)
        if isinstance(chosen, str):
            prompt, chosen, rejected = _cut_texts(prompt, chosen, rejected)
        else:
            prompt, chosen, rejected = _cut_messages(prompt, chosen, rejected)
        self._require_prompt_and_answers(prompt, chosen, rejected)
        # In the style "plain", texts are joined as they are; in the style "chat", they become turns.
        if isinstance(chosen, str) and self.style != "chat":
            require_no_parts_of_a_chat(row, self.keys)
        else:
            # Messages, or texts that become turns.
            if isinstance(prompt, str):
                prompt = [turn("user", prompt)]
            prompt = with_system(prompt, row, self.keys, self.keys["prompt"])
            if isinstance(chosen, str):
                chosen = [turn("assistant", chosen)]
                rejected = [turn("assistant", rejected)]
        return [
            Example(
                line,
                sub=-1,
                group="",
                prompt=prompt,
                completion=chosen,
                text=None,
                tools=row.tools,
                rejected=rejected,
            )
        ]

    def _read(self, row: Any, name: str) -> Any:
        """The text of a column, or its messages, checked; None if the row has no such column."""
        value = getattr(row, name)
        if isinstance(value, dict):
            value = [value]  # Axolotl and LLaMA-Factory write an answer of one message so
        if isinstance(value, list):
            return check_messages(value, self.keys[name], self.unread)
        return value

    def _require_a_pair(self, prompt: Any, chosen: Any, rejected: Any) -> None:
        """Refuse answers that are empty, equal, or not of one kind with each other and the prompt."""
        keys = self.keys
        for name, answer in (("chosen", chosen), ("rejected", rejected)):
            if not answer:
                raise RowRejectedError("empty_completion", f"`{keys[name]}` is empty")
        are_texts = isinstance(chosen, str)
        # A text as the prompt of messages is fine: it becomes the user's turn.
        if isinstance(rejected, str) != are_texts or (are_texts and isinstance(prompt, list)):
            names = ", ".join(f"`{keys[name]}`" for name in ("prompt", "chosen", "rejected"))
            raise RowRejectedError("wrong_type", f"{names} must be of one kind: texts, or lists of messages")
        if chosen == rejected:
            raise RowRejectedError("no_preference", f"`{keys['chosen']}` and `{keys['rejected']}` are the same")

    def _require_prompt_and_answers(self, prompt: Any, chosen: Any, rejected: Any) -> None:
        """Refuse a pair of which a part says nothing, once the prompt is cut off the answers."""
        keys = self.keys
        for name, answer in (("chosen", chosen), ("rejected", rejected)):
            if is_blank(answer):
                raise RowRejectedError("empty_completion", f"`{keys[name]}` holds nothing after the prompt")
            if isinstance(answer, list):
                require_answer(answer, keys[name])
        if not prompt:
            raise RowRejectedError(
                "no_prompt",
                f"there is no `{keys['prompt']}`, and `{keys['chosen']}` and `{keys['rejected']}` have no "
                "beginning in common; name the column of the prompt (keys: {prompt: question})",
            )


def _cut_messages(
    prompt: Messages | str | None, chosen: Messages, rejected: Messages
) -> tuple[Messages, Messages, Messages]:
    """The messages of the prompt, and of each answer without it. If the row has no prompt, the messages with which both
    answers begin are the prompt: of the answers [Q, A] and [Q, B], that is [Q].

    Args:
        prompt: a text is the user's turn, unless the answers begin with messages in common: these have it then.
    """
    if isinstance(prompt, list):
        size = len(prompt)
        # A prompt of no messages is no reason to look for another: the row says that it has none.
        if size and chosen[:size] == prompt == rejected[:size]:
            return prompt, chosen[size:], rejected[size:]
        return prompt, chosen, rejected
    shorter = min(len(chosen), len(rejected))
    # How many messages both begin with. If one answer is the beginning of the other, one less, so that each answer has
    # at least one message left.
    cut = next((i for i in range(shorter) if chosen[i] != rejected[i]), shorter - 1)
    # `prompt` is a text here, or None.
    if not cut and prompt:
        return [turn("user", prompt)], chosen, rejected
    return chosen[:cut], chosen[cut:], rejected[cut:]


def _cut_texts(prompt: str | None, chosen: str, rejected: str) -> tuple[str, str, str]:
    """The prompt, and each answer without it. If the row has no prompt, the characters with which both answers begin
    are the prompt: of "Hi there" and "Hi you", that is "Hi". The space at its end belongs to the answers, because
    tokens begin with their space. It is the prompt that TRL's `extract_prompt` finds.

    Args:
        chosen, rejected: not empty.
    """
    if prompt is not None:
        return prompt, chosen, rejected
    shorter = min(len(chosen), len(rejected))
    cut = next((i for i in range(shorter) if chosen[i] != rejected[i]), shorter)
    if cut == shorter:  # one answer begins the other: a character is left of it, wherever spaces are, as in TRL
        cut = shorter - 1
    elif cut and chosen[cut - 1] == " ":
        cut -= 1
    return chosen[:cut], chosen[cut:], rejected[cut:]
