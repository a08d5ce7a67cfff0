"""Prompt and completion, each a text or a list of messages. One example per row."""

from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, cast

import msgspec

from ...schemas.errors import RowRejectedError
from ...schemas.rows import Example, Messages
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
from .turns import per_turn


@dataclass(frozen=True, kw_only=True)
class PromptCompletionOptions(Options):
    """Column names, and how a row becomes examples."""

    prompt_key: str = "prompt"
    completion_key: str = "completion"
    tools_key: str = "tools"
    """Column of the tools; rows may lack it."""
    style: Style = "plain"
    """`plain`: texts are joined as they are. `chat`: they are a user's and an assistant's turn."""
    prompt_only: bool = False
    """Ignore the completion, which may be absent; examples get an empty one."""
    per_turn: bool = False
    """One example per assistant turn in a completion of messages."""


class PromptCompletionRow(Protocol):
    """A row with a prompt and a completion of the same kind. With `prompt_only`, `completion` is None."""

    prompt: Messages | str
    completion: Messages | str | None
    tools: Objects


class PromptCompletionFormat(Format[PromptCompletionOptions, PromptCompletionRow]):
    """Prompts and completions, kept unchanged."""

    name: ClassVar[str] = "prompt_completion"
    options_type: ClassVar[type[Options]] = PromptCompletionOptions

    def __init__(self, options: PromptCompletionOptions | None = None) -> None:
        options = options or PromptCompletionOptions()
        either = str | list[dict[str, Any]]
        fields: list[Any] = [("prompt", either)]
        rename = {"prompt": options.prompt_key, "tools": options.tools_key}
        if not options.prompt_only:  # the decoder skips keys that the type lacks, without parsing them
            fields.append(("completion", either))
            rename["completion"] = options.completion_key
        fields.append(("tools", Objects, None))
        nested = list(rename.values())
        fields += media_fields(nested)
        row_type = msgspec.defstruct("PromptCompletionRow", fields, rename=rename)
        super().__init__(options, cast(type[PromptCompletionRow], row_type), nested)

    @property
    def form(self) -> PublicForm:
        return "prompt" if self.options.prompt_only else "prompt_completion"

    def examples(self, row: PromptCompletionRow, line: int, skipped: Counter[str] | None = None) -> list[Example]:
        """See `Format.examples`.

        Rejects `empty_completion`, `empty` (an empty prompt with `prompt_only`), and what `check_messages` rejects.
        """
        options, prompt = self.options, row.prompt
        refuse_media(row)
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
                    f"`{options.prompt_key}` is {kind_of(prompt)} but `{options.completion_key}` is "
                    f"{kind_of(completion)}: both must be of one kind",
                )
            if is_blank(completion):
                raise RowRejectedError("empty_completion", f"`{options.completion_key}` is empty")
        if isinstance(prompt, str) or isinstance(completion, str):
            if options.style == "chat":
                assert isinstance(prompt, str)
                assert isinstance(completion, str)
                prompt = [turn("user", prompt)] if prompt else []
                completion = [turn("assistant", completion)] if completion else []
            return [Example(line, -1, "", prompt, completion, None, tools_of(row.tools, options.tools_key))]
        prompt = check_messages(prompt, options.prompt_key)
        completion = check_messages(completion, options.completion_key)
        require_answer(completion, options.completion_key)
        example = Example(line, -1, "", prompt, completion, None, tools_of(row.tools, options.tools_key))
        return per_turn(example, len(prompt), skipped) if options.per_turn else [example]
