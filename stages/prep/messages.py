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
    check_messages,
    conversation,
    objects_of,
    refuse_media,
    require_answer,
    role_key,
    tools_of,
)


class MessagesFormat(Format):
    """Conversations. If the last message is the assistant's, it is the completion and all messages before it are the
    prompt.

    Messages keep every key and value as they were decoded, `content` parts and tool calls included.
    """

    name = "messages"
    columns: ClassVar[Columns] = {
        "messages": Column(list[dict[str, Any]] | str, required=True, nested=True),
        "tools": TOOLS,
        "functions": Column(Any),
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
        if row.functions:
            raise RowRejectedError("bad_tools", "`functions` is not read; give `tools`, or keys: {tools: functions}")
        messages = check_messages(given, key)
        require_answer(messages, key)
        return conversation(messages, tools_of(row, self.keys), line, per_turn=self.options.per_turn, skipped=skipped)
