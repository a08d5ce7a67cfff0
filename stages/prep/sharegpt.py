"""ShareGPT conversations: turns with `from` and `value`, and different role names."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

from ...schemas.errors import RowRejectedError
from ...schemas.rows import Example, Message
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
    turn,
)

ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "system": "system",
    "developer": "developer",
    "tool": "tool",
    "observation": "tool",
    "function": "tool",
    "function_response": "tool",
    "tool_response": "tool",
}
"""Maps ShareGPT's role names to those of templates."""


class ShareGPTFormat(Format):
    """Conversations of `from` and `value`. Turns with `role` and `content` are accepted too.

    `system` is a system text that opens the conversation. If the last message is the assistant's, it is the completion
    and all messages before it are the prompt.
    """

    name = "sharegpt"
    columns: ClassVar[Columns] = {
        "conversations": Column(list[dict[str, Any]] | str, required=True, nested=True),
        "system": Column(str | None),
        "tools": TOOLS,
        **MEDIA,
    }
    others = COLUMNS
    values = "a list of objects with `from`"
    whole = True
    default_style = "chat"

    def fits(self, row: Mapping[str, Any]) -> bool:
        """See `Format.fits`."""
        return role_key(row.get(self.keys["conversations"])) == "from"

    def examples(self, row: Any, line: int, skipped: Counter[str] | None = None) -> list[Example]:
        """See `Format.examples`.

        Rejects `empty`, `empty_completion`, `missing_key`, `unknown_role`, `two_systems`, and what `check_messages`
        rejects.
        """
        key = self.keys["conversations"]
        refuse_media(row)
        turns = objects_of(row.conversations, key)
        if not turns:
            raise RowRejectedError("empty", f"`{key}` has no turns")
        messages = check_messages([_spoken(one, f"{key}[{index}]") for index, one in enumerate(turns)], key)
        require_answer(messages, key)
        if row.system and messages[0]["role"] != "system":
            messages = [turn("system", row.system), *messages]
        elif row.system and messages[0].get("content") != row.system:
            where = f"`{self.keys['system']}` is a system text, and `{key}`"
            raise RowRejectedError("two_systems", f"{where} begins with another; leave one out")
        return conversation(messages, tools_of(row, self.keys), line, per_turn=self.options.per_turn, skipped=skipped)


def _spoken(message: Message, where: str) -> Message:
    """A turn as a message with `role` and `content`; other keys stay."""
    role = message.get("from", message.get("role"))
    if role is None:
        names = ", ".join(f"`{name}`" for name in message)
        raise RowRejectedError("missing_key", f"`{where}` has no `from`; it has {names or 'nothing'}")
    if not isinstance(role, str):
        raise RowRejectedError("wrong_type", f"`{where}.from` must be a string, got {type(role).__name__}")
    name = role.strip().lower()
    if name not in ROLES:
        raise RowRejectedError(
            "unknown_role",
            f"`{where}.from` is {role[:40]!r}; known are {', '.join(ROLES)}; a call of a function is written as an "
            "assistant's `tool_calls`, in the format messages",
        )
    if message.get("role", role) != role:
        raise RowRejectedError("unknown_role", f"`{where}` has `from` and `role`, which differ; keep one")
    out: Message = {"role": ROLES[name]}
    for key, value in message.items():
        if key == "value" and "content" not in message:
            out["content"] = value
        elif key not in ("from", "role"):
            out[key] = value
    return out
