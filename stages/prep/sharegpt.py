"""ShareGPT conversations: turns with `from` and `value`, and different role names."""

from difflib import get_close_matches
from typing import Any, ClassVar

from ...schemas.errors import RowRejectedError
from ...schemas.rows import Message
from .columns import CHAT_COLUMNS, OBJECTS, Column, Columns
from .message_checks import calls_of
from .messages import MessagesFormat

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
    # `observation` and `function_call` are LLaMA-Factory's names, `tool_response` and `tool_call` those of ms-swift.
    "observation": "tool",
    "function": "tool",
    "function_response": "tool",
    "tool_response": "tool",
    "function_call": "assistant",
    "tool_call": "assistant",
}
"""Maps ShareGPT's role names to those of templates."""
CALLS = ("function_call", "tool_call")
"""Roles of turns whose value is the JSON of calls."""
CALLS_AND_RESULTS = (*CALLS, "tool_response", "function_response", "observation", "function")
"""Roles of calls and of their results in other tools' data. To rename such a role is not enough: a call would be
trained as an answer in words.
"""


def nearest_role(role: str) -> str | None:
    """The usual role that a misspelt or foreign one most likely stands for; None if none is near."""
    name = role.strip().lower()
    return ROLES.get(name) or next(iter(get_close_matches(name, set(ROLES.values()), n=1)), None)


class ShareGPTFormat(MessagesFormat):
    """Conversations of `from` and `value`. Turns with `role` and `content` are accepted too.

    The value of a `function_call` is the JSON of one call, `{"name": …, "arguments": …}`, or of a list of calls; it
    becomes the `tool_calls` of an assistant's message.
    """

    name = "sharegpt"
    columns: ClassVar[Columns] = {
        "conversations": Column(list[dict[str, Any]], required=True, nested=True, cell=OBJECTS),
        **CHAT_COLUMNS,
    }
    values = "a list of objects with `from`"
    turn_key = "from"

    def message(self, source_turn: Message, where: str) -> Message:
        """A turn with `from` and `value` as a message with `role` and `content`. Its other keys stay.

        Args:
            where: the turn's place, such as `conversations[2]`, for errors.

        Rejects `missing_key`, `wrong_type`, `unknown_role`, `two_roles`, `bad_tool_call`.
        """
        role = _role_of(source_turn, where)
        message: Message = {"role": ROLES[role]}
        for key, value in source_turn.items():
            if key == "value" and "content" not in source_turn:
                message["content"] = value
            elif key not in ("from", "role"):
                message[key] = value
        # A turn with `tool_calls` beside its text is in OpenAI's form already, whatever its role is called.
        if role in CALLS and not message.get("tool_calls"):
            message["tool_calls"] = calls_of(message.get("content"), f"`{where}.value`")
            message["content"] = ""  # some templates append to the content and need one
        return message


def _role_of(source_turn: Message, where: str) -> str:
    """Who speaks in a turn: a key of `ROLES`.

    Raises:
        RowRejectedError: `missing_key`, `wrong_type`, `unknown_role`, or `two_roles` if `from` and `role` differ.
    """
    role = source_turn.get("from", source_turn.get("role"))
    if role is None:
        names = ", ".join(f"`{name}`" for name in source_turn)
        raise RowRejectedError("missing_key", f"`{where}` has no `from`; it has {names or 'nothing'}")
    if not isinstance(role, str):
        raise RowRejectedError("wrong_type", f"`{where}.from` must be a string, got {type(role).__name__}")
    name = role.strip().lower()
    if name not in ROLES:
        raise RowRejectedError("unknown_role", f"`{where}.from` is {role[:40]!r}; known are {', '.join(ROLES)}")
    if source_turn.get("role", role) != role:
        raise RowRejectedError("two_roles", f"`{where}` has `from` and `role`, which differ; keep one")
    return name
