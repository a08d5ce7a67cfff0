"""Preference data: a prompt with a chosen and a rejected answer. One example per row."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

from ...schemas.errors import RowRejectedError
from ...schemas.rows import Example, Message, Messages
from .base import Column, Columns, Format
from .conversation import (
    MEDIA,
    TOOLS,
    are_alike,
    check_messages,
    is_blank,
    kind_of,
    refuse_media,
    require_answer,
    tools_of,
    turn,
)
from .sharegpt import spoken

_ANSWER = str | list[dict[str, Any]] | dict[str, Any]


class PreferenceFormat(Format):
    """Pairs of answers: texts, messages (also with `from` and `value`), or a single message.

    If the answers are messages and the prompt is missing or a text, the messages that both begin with are the prompt,
    as in `trl.extract_prompt`. If they have no message in common and the prompt is a text, it becomes the user's turn.
    Prompt messages that both answers repeat are removed from them.
    """

    name = "preference"
    columns: ClassVar[Columns] = {
        "prompt": Column(_ANSWER | None, nested=True),
        "chosen": Column(_ANSWER, required=True, nested=True),
        "rejected": Column(_ANSWER, required=True, nested=True),
        "tools": TOOLS,
        **MEDIA,
    }
    values = "lists of messages, or texts beside a prompt"

    def fits(self, row: Mapping[str, Any]) -> bool:
        """See `Format.fits`. Two texts that begin alike share a prompt only if the user says so."""
        chosen, asked = row.get(self.keys["chosen"]), row.get(self.keys.get("prompt", ""))
        alike = are_alike(chosen, row.get(self.keys["rejected"]))
        return alike and (not isinstance(chosen, str) or isinstance(asked, str | list))

    def examples(self, row: Any, line: int, skipped: Counter[str] | None = None) -> list[Example]:
        """See `Format.examples`.

        Rejects `empty_completion`, `no_preference` (equal answers), `no_prompt`, `wrong_type`, and what
        `check_messages` rejects.
        """
        keys = self.keys
        refuse_media(row)
        chosen = self._answer(row.chosen, keys["chosen"])
        rejected = self._answer(row.rejected, keys["rejected"])
        if isinstance(chosen, str) != isinstance(rejected, str):
            raise RowRejectedError(
                "wrong_type",
                f"`{keys['chosen']}` is {kind_of(chosen)} but `{keys['rejected']}` is {kind_of(rejected)}: "
                "both must be of one kind",
            )
        if chosen == rejected:
            raise RowRejectedError("no_preference", f"`{keys['chosen']}` and `{keys['rejected']}` are the same")
        prompt = None if row.prompt is None else self._messages_or_text(row.prompt, keys["prompt"])
        tools = tools_of(row, keys)
        if isinstance(chosen, str):
            return [self._texts(prompt, chosen, rejected, line, tools)]
        return [self._conversations(prompt, chosen, rejected, line, tools)]

    def _texts(self, prompt: Messages | str | None, chosen: str, rejected: str, line: int, tools: Any) -> Example:
        if isinstance(prompt, list):
            raise RowRejectedError(
                "wrong_type",
                f"`{self.keys['prompt']}` is a list of messages but `{self.keys['chosen']}` is a text: "
                "both must be of one kind",
            )
        if prompt is None:
            cut = common_text(chosen, rejected)
            prompt, chosen, rejected = chosen[:cut], chosen[cut:], rejected[cut:]
        self._require_all(prompt, chosen, rejected)
        if self.style == "chat":
            answers = [turn("assistant", chosen)], [turn("assistant", rejected)]
            return Example(line, -1, "", [turn("user", prompt)], answers[0], None, tools, rejected=answers[1])
        return Example(line, -1, "", prompt, chosen, None, tools, rejected=rejected)

    def _conversations(
        self, prompt: Messages | str | None, chosen: Messages, rejected: Messages, line: int, tools: Any
    ) -> Example:
        if not isinstance(prompt, list):
            cut = common_messages(chosen, rejected)
            if cut == 0 and prompt:
                shared = [turn("user", prompt)]
            else:
                shared, chosen, rejected = chosen[:cut], chosen[cut:], rejected[cut:]
        else:
            shared, size = prompt, len(prompt)
            if size and chosen[:size] == prompt == rejected[:size]:
                chosen, rejected = chosen[size:], rejected[size:]
        self._require_all(shared, chosen, rejected)
        return Example(line, -1, "", shared, chosen, None, tools, rejected=rejected)

    def _require_all(self, prompt: Messages | str, chosen: Messages | str, rejected: Messages | str) -> None:
        keys = self.keys
        for key, answer in ((keys["chosen"], chosen), (keys["rejected"], rejected)):
            if is_blank(answer):
                raise RowRejectedError("empty_completion", f"`{key}` holds nothing after the prompt")
            if isinstance(answer, list):
                require_answer(answer, key)
        if not prompt:
            raise RowRejectedError(
                "no_prompt",
                f"there is no `{keys['prompt']}`, and `{keys['chosen']}` and `{keys['rejected']}` have no "
                "beginning in common; name the column of the prompt (keys: {prompt: question})",
            )

    def _answer(self, value: Any, key: str) -> Any:
        if not value:
            raise RowRejectedError("empty_completion", f"`{key}` is empty")
        return self._messages_or_text(value, key)

    def _messages_or_text(self, value: Any, key: str) -> Any:
        if isinstance(value, str):
            return value
        messages: list[Message] = [value] if isinstance(value, dict) else value
        if any("from" in message for message in messages):
            messages = spoken(messages, key)
        return check_messages(messages, key)


def common_messages(chosen: Messages, rejected: Messages) -> int:
    """Count the messages that both begin with, leaving each answer at least one."""
    shorter = min(len(chosen), len(rejected))
    return next((i for i in range(shorter) if chosen[i] != rejected[i]), shorter - 1)


def common_text(chosen: str, rejected: str) -> int:
    """Count the characters that both begin with; a space at their end belongs to the answers."""
    shorter = min(len(chosen), len(rejected))
    cut = next((i for i in range(shorter) if chosen[i] != rejected[i]), shorter)
    if cut == shorter:
        return max(shorter - 1, 0)
    return cut - 1 if cut and chosen[cut - 1] == " " else cut
