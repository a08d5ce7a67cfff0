"""Conversations under `messages`. One example per row, or per turn of the assistant."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

from ...schemas.errors import RowRejectedError
from ...schemas.rows import Example
from .base import Column, Columns, Format
from .conversation import (
    COLUMNS,
    MEDIA,
    TOOLS,
    Objects,
    check_messages,
    conversation,
    objects_of,
    refuse_media,
    require_answer,
    tools_of,
)
from .sharegpt import role_key


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
        "functions": Column(Objects, nested=True),
        **MEDIA,
    }
    others = COLUMNS
    values = "a list of objects with `role`"
    whole = True
    default_style = "chat"

    def fits(self, row: Mapping[str, Any]) -> bool:
        """See `Format.fits`."""
        return role_key(row.get(self.keys["messages"])) == "role"

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
        tools = tools_of(row, self.keys)
        if tools is None and (functions := objects_of(row.functions, "functions", "bad_tools")) is not None:
            tools = [{"type": "function", "function": one} for one in functions]
        return conversation(messages, tools, line, per_turn=self.options.per_turn, skipped=skipped)
