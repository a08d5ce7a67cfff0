"""Conversations: one list of messages and one example per row."""

from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, cast

import msgspec

from ...schemas.errors import RowRejectedError
from ...schemas.rows import Example, Messages
from .base import Format, Options, PublicForm
from .conversation import (
    Objects,
    check_messages,
    media_fields,
    objects_of,
    refuse_media,
    require_answer,
    tools_of,
    wrapped_functions,
)
from .turns import per_turn


@dataclass(frozen=True, kw_only=True)
class MessagesOptions(Options):
    """Column names, and how a conversation is divided."""

    messages_key: str = "messages"
    tools_key: str = "tools"
    """Column of the tools; rows may lack it."""
    per_turn: bool = False
    """One example per assistant turn."""


class MessagesRow(Protocol):
    """A row with one conversation."""

    messages: Messages | str
    tools: Objects
    functions: Objects
    """The old name of `tools`; read if the row has no tools."""


class MessagesFormat(Format[MessagesOptions, MessagesRow]):
    """Conversations. If the last message is the assistant's, it is the completion and all messages before it are the
    prompt.

    Messages keep every key and value as they were decoded, `content` parts and tool calls included; see `conversation`
    for the exceptions.
    """

    name: ClassVar[str] = "messages"
    options_type: ClassVar[type[Options]] = MessagesOptions

    def __init__(self, options: MessagesOptions | None = None) -> None:
        options = options or MessagesOptions()
        taken = (options.messages_key, options.tools_key)
        fields: list[Any] = [("messages", list[dict[str, Any]] | str), ("tools", Objects, None)]
        if "functions" not in taken:
            fields.append(("functions", Objects, None))
        row_type = msgspec.defstruct(
            "MessagesRow",
            [*fields, *media_fields(taken)],
            rename={"messages": options.messages_key, "tools": options.tools_key},
        )
        super().__init__(options, cast(type[MessagesRow], row_type), (*taken, "functions"))

    @property
    def form(self) -> PublicForm:
        return "prompt_completion" if self.options.per_turn else "messages"

    def examples(self, row: MessagesRow, line: int, skipped: Counter[str] | None = None) -> list[Example]:
        """See `Format.examples`.

        Rejects `empty`, `empty_completion`, `wrong_type`, `missing_key`, `weight`, `not_text`, `bad_tools`.
        """
        options = self.options
        refuse_media(row)
        conversation = objects_of(row.messages, options.messages_key)
        if not conversation:
            raise RowRejectedError("empty", f"`{options.messages_key}` has no messages")
        messages = check_messages(conversation, options.messages_key)
        require_answer(messages, options.messages_key)
        tools = tools_of(row.tools, options.tools_key)
        if tools is None:
            tools = wrapped_functions(tools_of(getattr(row, "functions", None), "functions"))
        cut = len(messages) - (messages[-1]["role"] == "assistant")
        example = Example(line, -1, "", messages[:cut], messages[cut:], None, tools)
        return per_turn(example, 0, skipped) if options.per_turn else [example]
