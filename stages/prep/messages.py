"""Conversations: one list of messages and one example per row."""

from collections import Counter
from typing import Any, ClassVar

from ...schemas.errors import RowRejectedError
from ...schemas.rows import Example
from .base import Column, Columns, Format, PublicForm
from .conversation import (
    MEDIA,
    TOOLS,
    Objects,
    check_messages,
    conversation,
    objects_of,
    refuse_media,
    require_answer,
    tools_of,
    wrapped_functions,
)


class MessagesFormat(Format):
    """Conversations. If the last message is the assistant's, it is the completion and all messages before it are the
    prompt.

    Messages keep every key and value as they were decoded, `content` parts and tool calls included; see `conversation`
    for the exceptions. `functions` is the old name of `tools`, read if the row has no tools.
    """

    name = "messages"
    columns: ClassVar[Columns] = {
        "messages": Column(list[dict[str, Any]] | str, required=True, nested=True),
        "tools": TOOLS,
        "functions": Column(Objects, nested=True, gives_way=True),
        **MEDIA,
    }
    default_style = "chat"

    @property
    def form(self) -> PublicForm:
        return "prompt_completion" if self.options.per_turn else "messages"

    def examples(self, row: Any, line: int, skipped: Counter[str] | None = None) -> list[Example]:
        """See `Format.examples`.

        Rejects `empty`, `empty_completion`, `wrong_type`, `missing_key`, `weight`, `not_text`, `bad_tools`.
        """
        key = self.keys["messages"]
        refuse_media(row)
        given = objects_of(row.messages, key)
        if not given:
            raise RowRejectedError("empty", f"`{key}` has no messages")
        messages = check_messages(given, key)
        require_answer(messages, key)
        tools = tools_of(row.tools, self.keys["tools"])
        if tools is None:
            tools = wrapped_functions(tools_of(getattr(row, "functions", None), "functions"))
        return conversation(messages, tools, line, per_turn=self.options.per_turn, skipped=skipped)
