"""ShareGPT conversations: turns with `from` and `value`, and different role names."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

from ...schemas.errors import RowRejectedError
from ...schemas.rows import Example, Message, Messages
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
    tools_of,
    turn,
)
from .rowjson import decode_json

ROLES = {
    "human": "user",
    "user": "user",
    "prompter": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "ai": "assistant",
    "system": "system",
    "developer": "developer",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "function_response": "tool",
    "tool_response": "tool",
    "function_call": "assistant",
    "tool_call": "assistant",
}
"""Maps ShareGPT's role names to those of templates."""

_CALLS = ("function_call", "tool_call")


class ShareGPTFormat(Format):
    """Conversations of `from` and `value`. Turns with `role` and `content` are accepted too.

    `system` is a system text that opens the conversation. The value of a `function_call` is the JSON of one call,
    `{"name": …, "arguments": …}`, or of a list of calls; it becomes the `tool_calls` of an assistant's message. If the
    last message is the assistant's, it is the completion and all messages before it are the prompt.
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

        Rejects `empty`, `empty_completion`, `missing_key`, `unknown_role`, `bad_tool_call`, `two_systems`, and what
        `check_messages` rejects.
        """
        key = self.keys["conversations"]
        refuse_media(row)
        turns = objects_of(row.conversations, key)
        if not turns:
            raise RowRejectedError("empty", f"`{key}` has no turns")
        messages = check_messages(spoken(turns, key), key)
        require_answer(messages, key)
        if row.system:
            messages = opened(messages, row.system, self.keys["system"], key)
        return conversation(messages, tools_of(row, self.keys), line, per_turn=self.options.per_turn, skipped=skipped)


def role_key(value: Any) -> str:
    """`role` or `from`, whichever all turns of a conversation have; "" if neither. For detection."""
    if isinstance(value, str):  # JSON, as in a cell of CSV
        try:
            value = decode_json(value, "") if value.lstrip().startswith("[") else None
        except RowRejectedError:
            return ""
    if not isinstance(value, list) or not value or not all(isinstance(one, Mapping) for one in value):
        return ""
    if all("from" in one for one in value):
        return "from"
    if not all("role" in one for one in value):
        return ""
    names = {str(one["role"]).strip().lower() for one in value}
    # Role names of one format under the key of the other; no template has a role called human.
    return "from" if names & {"human", "gpt", "chatgpt", "function_call"} and names <= set(ROLES) else "role"


def opened(messages: Messages, system: str, system_key: str, key: str) -> Messages:
    """Return the conversation with a system message put before it.

    Raises:
        RowRejectedError: `two_systems`, if the conversation already begins with a system message.
    """
    first = messages[0]
    if first["role"] != "system":
        return [turn("system", system), *messages]
    if first.get("content") != system:
        raise RowRejectedError(
            "two_systems", f"`{system_key}` is a system text, and `{key}` begins with another; leave one out"
        )
    return messages


def spoken(turns: list[Message], key: str) -> Messages:
    """Convert (M,) turns to messages with `role` and `content`; other keys stay. The input is not changed.

    Raises:
        RowRejectedError: `missing_key`, `wrong_type`, `unknown_role`, `bad_tool_call`.
    """
    return [_spoken(one, f"{key}[{index}]") for index, one in enumerate(turns)]


def _spoken(message: Message, where: str) -> Message:
    role = message.get("from", message.get("role"))
    if role is None:
        names = ", ".join(f"`{name}`" for name in message)
        raise RowRejectedError("missing_key", f"`{where}` has no `from`; it has {names or 'nothing'}")
    if not isinstance(role, str):
        raise RowRejectedError("wrong_type", f"`{where}.from` must be a string, got {type(role).__name__}")
    name = role.strip().lower()
    if name not in ROLES:
        raise RowRejectedError("unknown_role", f"`{where}.from` is {role[:40]!r}; known are {', '.join(ROLES)}")
    if "from" in message and "role" in message and message["from"] != message["role"]:
        raise RowRejectedError("unknown_role", f"`{where}` has `from` and `role`, which differ; keep one")
    out: Message = {"role": ROLES[name]}
    for one, value in message.items():
        if one == "value" and "content" not in message:
            out["content"] = value
        elif one not in ("from", "role"):
            out[one] = value
    if name in _CALLS and not out.get("tool_calls"):
        out["tool_calls"] = calls_of(out.get("content"), f"{where}.value")
        out["content"] = ""  # some templates append to the content and need one
    return out


def calls_of(value: Any, where: str) -> list[dict[str, Any]]:
    """The `tool_calls` described by JSON text or a decoded object.

    Raises:
        RowRejectedError: `bad_tool_call`, unless it is one `{"name", "arguments"}` or a list of them.
    """
    if isinstance(value, str):
        kind = dict[str, Any] | list[dict[str, Any]]
        value = decode_json(value, f"`{where}`", kind, what="the JSON of a call", reason="bad_tool_call")
    calls = value if isinstance(value, list) else [value]
    for call in calls:
        if not isinstance(call, dict) or not isinstance(call.get("name"), str) or "arguments" not in call:
            raise RowRejectedError("bad_tool_call", f"`{where}`: a call is an object with `name` and `arguments`")
    if not calls:
        raise RowRejectedError("bad_tool_call", f"`{where}` has no call in it")
    return [{"type": "function", "function": call} for call in calls]
