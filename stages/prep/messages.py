"""Conversations: one list of messages a row, one example a row."""

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
    """Where a row keeps its conversation."""

    messages_key: str = "messages"
    tools_key: str = "tools"
    """May be absent from a row."""
    per_turn: bool = False
    """One example for each turn of the assistant."""


class MessagesRow(Protocol):
    """A row with one conversation."""

    messages: Messages | str
    tools: Objects
    functions: Objects
    """What tools were called at first; looked at where there are none."""


class MessagesFormat(Format[MessagesOptions, MessagesRow]):
    """Conversations. All but a last message of the assistant is the prompt; that one is the completion.

    Messages keep every key and value as they were decoded, `content` parts and tool calls included; see
    `conversation` for what is said otherwise.
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
