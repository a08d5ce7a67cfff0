"""Prompt and completion, each a text or a list of messages. One example a row."""

from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, cast

import msgspec

from ...schemas.errors import RowRejectedError
from ...schemas.rows import Example, Messages
from .base import Format, Options, PublicForm
from .messages import check_messages, tools_of, without_nulls


@dataclass(frozen=True, kw_only=True)
class PromptCompletionOptions(Options):
    """Where a row keeps its prompt and its completion."""

    prompt_key: str = "prompt"
    completion_key: str = "completion"
    tools_key: str = "tools"
    """May be absent from a row."""
    prompt_only: bool = False
    """The completion is not looked at, and may be absent; the examples' is empty."""


class PromptCompletionRow(Protocol):
    """A row with a prompt and a completion of the same kind. With `prompt_only`, `completion` is None."""

    prompt: Messages | str
    completion: Messages | str | None
    tools: list[dict[str, Any]] | str | None


class PromptCompletionFormat(Format[PromptCompletionOptions, PromptCompletionRow]):
    """Prompts and completions, carried as they are."""

    name: ClassVar[str] = "prompt_completion"
    options_type: ClassVar[type[Options]] = PromptCompletionOptions

    def __init__(self, options: PromptCompletionOptions | None = None) -> None:
        options = options or PromptCompletionOptions()
        either = str | list[dict[str, Any]]
        fields: list[Any] = [("prompt", either)]
        rename = {"prompt": options.prompt_key, "tools": options.tools_key}
        if not options.prompt_only:  # a key that is not in the type is skipped unparsed
            fields.append(("completion", either))
            rename["completion"] = options.completion_key
        fields.append(("tools", list[dict[str, Any]] | str | None, None))
        row_type = msgspec.defstruct("PromptCompletionRow", fields, rename=rename)
        super().__init__(options, cast(type[PromptCompletionRow], row_type))

    @property
    def form(self) -> PublicForm:
        return "prompt" if self.options.prompt_only else "prompt_completion"

    def examples(self, row: PromptCompletionRow, line: int, skipped: Counter[str] | None = None) -> list[Example]:
        """See `Format.examples`. Rejects `wrong_type`, `not_text`, `bad_tools`, `empty_completion`, `empty`.

        A prompt may be empty beside a completion; alone, with `prompt_only`, it is `empty`.
        """
        options, prompt = self.options, row.prompt
        completion: Messages | str
        if options.prompt_only:
            if not prompt:
                raise RowRejectedError("empty", f"`{options.prompt_key}` is empty")
            completion = "" if isinstance(prompt, str) else []
        else:
            assert row.completion is not None  # the row's type requires it
            completion = row.completion
            if isinstance(prompt, str) != isinstance(completion, str):
                raise RowRejectedError(
                    "wrong_type",
                    f"`{options.prompt_key}` is {_kind(prompt)} but `{options.completion_key}` is "
                    f"{_kind(completion)}: both must be of one kind",
                )
            if not completion:
                raise RowRejectedError("empty_completion", f"`{options.completion_key}` is empty")
        if not isinstance(prompt, str):
            check_messages(prompt, options.prompt_key)
        if not isinstance(completion, str):
            check_messages(completion, options.completion_key)
        return [Example(line, -1, "", prompt, completion, None, tools_of(row.tools, options.tools_key))]

    def convert(self, row: Any) -> PromptCompletionRow:
        """As `Format.convert`, without the nulls that Arrow puts where other rows have a key."""
        converted = super().convert(row)
        if isinstance(converted.prompt, list):
            converted.prompt = [without_nulls(message) for message in converted.prompt]
        if not self.options.prompt_only and isinstance(converted.completion, list):
            converted.completion = [without_nulls(message) for message in converted.completion]
        if isinstance(converted.tools, list):
            converted.tools = [without_nulls(tool) for tool in converted.tools]
        return converted


def _kind(value: Messages | str) -> str:
    return "a text" if isinstance(value, str) else "a list of messages"
