"""Conversations under `messages`. One example per row, or per turn of the assistant."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

from ...schemas.errors import RowRejectedError
from ...schemas.rows import Example, Message
from .base import Column, Columns, Format
from .conversation import (
    MEDIA,
    TOOLS,
    check_messages,
    conversation,
    objects_of,
    refuse_media,
    require_answer,
    tools_of,
    turn,
    turns_have,
)


class MessagesFormat(Format):
    """Conversations. If the last message is the assistant's, it is the completion and all messages before it are the
    prompt. A format with a column `system` has there a text that opens the conversation.

    Messages keep every key and value as they were decoded, `content` parts and tool calls included.
    """

    name = "messages"
    columns: ClassVar[Columns] = {
        "messages": Column(list[dict[str, Any]] | str, required=True, nested=True),
        "tools": TOOLS,
        "functions": Column(Any),
        **MEDIA,
    }
    others = ("messages", "conversations", "conversation")
    values = "a list of objects with `role`"
    whole = True
    default_style = "chat"
    turn_key: ClassVar[str] = "role"
    """The key by which detection knows turns."""

    def fits(self, row: Mapping[str, Any]) -> bool:
        """See `Format.fits`."""
        return turns_have(self.turn_key, row.get(self.keys[self.field]))

    @property
    def field(self) -> str:
        """The field of the column of turns."""
        return next(iter(self.columns))

    def message(self, said: Message, where: str) -> Message:
        """A turn as a message with `role` and `content`.

        Args:
            where: names it in errors.
        """
        return said

    def examples(self, row: Any, line: int, skipped: Counter[str] | None = None) -> list[Example]:
        """See `Format.examples`.

        Rejects `empty`, `empty_completion`, `wrong_type`, `missing_key`, `weight`, `not_text`, `bad_tools`,
        `two_systems`.
        """
        key = self.keys[self.field]
        refuse_media(row)
        given = objects_of(getattr(row, self.field), key)
        if not given:
            raise RowRejectedError("empty", f"`{key}` has no messages")
        if row.functions:
            raise RowRejectedError("bad_tools", "`functions` is not read; give `tools`, or keys: {tools: functions}")
        messages = check_messages([self.message(one, f"{key}[{index}]") for index, one in enumerate(given)], key)
        require_answer(messages, key)
        if row.system and messages[0]["role"] != "system":
            messages = [turn("system", row.system), *messages]
        elif row.system and messages[0].get("content") != row.system:
            where = f"`{self.keys['system']}` is a system text, and `{key}`"
            raise RowRejectedError("two_systems", f"{where} begins with another; leave one out")
        return conversation(messages, tools_of(row, self.keys), line, per_turn=self.options.per_turn, skipped=skipped)
