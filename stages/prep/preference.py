"""Preference data: a prompt with a chosen and a rejected answer. One example per row."""

from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias, cast

import msgspec

from ...schemas.errors import RowRejectedError
from ...schemas.rows import Example, Message, Messages
from .base import Format, Options, PublicForm
from .conversation import (
    Objects,
    Style,
    check_messages,
    is_blank,
    kind_of,
    media_fields,
    refuse_media,
    require_answer,
    tools_of,
    turn,
)
from .sharegpt import spoken

Answer: TypeAlias = str | list[dict[str, Any]] | dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class PreferenceOptions(Options):
    """Column names, and how texts are rendered."""

    prompt_key: str = "prompt"
    """Column of the prompt. Without it, the prompt is the common beginning of both answers."""
    chosen_key: str = "chosen"
    rejected_key: str = "rejected"
    tools_key: str = "tools"
    """Column of the tools; rows may lack it."""
    style: Style = "plain"
    """`plain`: texts are joined as they are. `chat`: they are a user's and an assistant's turn."""


class PreferenceRow(Protocol):
    """A row with two answers of the same kind."""

    chosen: Answer
    rejected: Answer
    prompt: Answer | None
    tools: Objects


class PreferenceFormat(Format[PreferenceOptions, PreferenceRow]):
    """Pairs of answers: texts, messages (also with `from` and `value`), or a single message.

    If the answers are messages and the prompt is missing or a text, the messages that both begin with are the prompt,
    as in `trl.extract_prompt`. If they have no message in common and the prompt is a text, it becomes the user's turn.
    Prompt messages that both answers repeat are removed from them.
    """

    name: ClassVar[str] = "preference"
    options_type: ClassVar[type[Options]] = PreferenceOptions

    def __init__(self, options: PreferenceOptions | None = None) -> None:
        options = options or PreferenceOptions()
        names = {key: getattr(options, f"{key}_key") for key in ("chosen", "rejected", "prompt", "tools")}
        row_type = msgspec.defstruct(
            "PreferenceRow",
            [
                ("chosen", Answer),
                ("rejected", Answer),
                ("prompt", Answer | None, None),
                ("tools", Objects, None),
                *media_fields(list(names.values())),
            ],
            rename=names,
        )
        super().__init__(options, cast(type[PreferenceRow], row_type), list(names.values()))

    @property
    def form(self) -> PublicForm:
        return "preference"

    def examples(self, row: PreferenceRow, line: int, skipped: Counter[str] | None = None) -> list[Example]:
        """See `Format.examples`.

        Rejects `empty_completion`, `no_preference` (equal answers), `no_prompt`, `wrong_type`, and what
        `check_messages` rejects.
        """
        options = self.options
        refuse_media(row)
        chosen = self._answer(row.chosen, options.chosen_key)
        rejected = self._answer(row.rejected, options.rejected_key)
        if isinstance(chosen, str) != isinstance(rejected, str):
            raise RowRejectedError(
                "wrong_type",
                f"`{options.chosen_key}` is {kind_of(chosen)} but `{options.rejected_key}` is {kind_of(rejected)}: "
                "both must be of one kind",
            )
        if chosen == rejected:
            raise RowRejectedError("no_preference", f"`{options.chosen_key}` and `{options.rejected_key}` are the same")
        prompt = None if row.prompt is None else self._messages_or_text(row.prompt, options.prompt_key)
        tools = tools_of(row.tools, options.tools_key)
        if isinstance(chosen, str):
            assert isinstance(rejected, str)
            return [self._texts(prompt, chosen, rejected, line, tools)]
        assert isinstance(rejected, list)
        return [self._conversations(prompt, chosen, rejected, line, tools)]

    def _texts(self, prompt: Messages | str | None, chosen: str, rejected: str, line: int, tools: Any) -> Example:
        if isinstance(prompt, list):
            raise RowRejectedError(
                "wrong_type",
                f"`{self.options.prompt_key}` is a list of messages but `{self.options.chosen_key}` is a text: "
                "both must be of one kind",
            )
        if prompt is None:
            cut = common_text(chosen, rejected)
            prompt, chosen, rejected = chosen[:cut], chosen[cut:], rejected[cut:]
        self._require_all(prompt, chosen, rejected)
        if self.options.style == "chat":
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
        options = self.options
        for key, answer in ((options.chosen_key, chosen), (options.rejected_key, rejected)):
            if is_blank(answer):
                raise RowRejectedError("empty_completion", f"`{key}` holds nothing after the prompt")
            if isinstance(answer, list):
                require_answer(answer, key)
        if not prompt:
            raise RowRejectedError(
                "no_prompt",
                f"there is no `{options.prompt_key}`, and `{options.chosen_key}` and `{options.rejected_key}` have no "
                "beginning in common; name the column of the prompt (keys: {prompt: question})",
            )

    def _answer(self, value: Answer, key: str) -> Messages | str:
        if not value:
            raise RowRejectedError("empty_completion", f"`{key}` is empty")
        return self._messages_or_text(value, key)

    def _messages_or_text(self, value: Answer, key: str) -> Messages | str:
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
