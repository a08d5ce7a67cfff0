"""Conversations: one list of messages a row, one example a row."""

from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, cast

import msgspec

from ...schemas.errors import RowRejectedError
from ...schemas.rows import Example, Messages
from .base import Format, Options, PublicForm

_TEXT_PARTS = frozenset({"text", "input_text", "output_text", "thinking", "reasoning", "refusal"})
_TOOLS = msgspec.json.Decoder(list[dict[str, Any]] | None)


@dataclass(frozen=True, kw_only=True)
class MessagesOptions(Options):
    """Where a row keeps its conversation."""

    messages_key: str = "messages"
    tools_key: str = "tools"
    """May be absent from a row."""


class MessagesRow(Protocol):
    """A row with one conversation."""

    messages: Messages
    tools: list[dict[str, Any]] | str | None


class MessagesFormat(Format[MessagesOptions, MessagesRow]):
    """Conversations. All but a last message of the assistant is the prompt; that one is the completion.

    Messages keep every key and value as they were decoded, `content` parts and tool calls included.
    """

    name: ClassVar[str] = "messages"
    options_type: ClassVar[type[Options]] = MessagesOptions

    def __init__(self, options: MessagesOptions | None = None) -> None:
        options = options or MessagesOptions()
        row_type = msgspec.defstruct(
            "MessagesRow",
            [
                ("messages", list[dict[str, Any]]),
                ("tools", list[dict[str, Any]] | str | None, None),
            ],
            rename={"messages": options.messages_key, "tools": options.tools_key},
        )
        super().__init__(options, cast(type[MessagesRow], row_type))

    @property
    def form(self) -> PublicForm:
        return "messages"

    def examples(self, row: MessagesRow, line: int, skipped: Counter[str] | None = None) -> list[Example]:
        """See `Format.examples`. Rejects `empty`, `wrong_type`, `not_text`, `bad_tools`."""
        messages = row.messages
        if not messages:
            raise RowRejectedError("empty", f"`{self.options.messages_key}` has no messages")
        check_messages(messages, self.options.messages_key)
        cut = len(messages) - (messages[-1]["role"] == "assistant")
        tools = tools_of(row.tools, self.options.tools_key)
        return [Example(line, -1, "", messages[:cut], messages[cut:], None, tools)]

    def convert(self, row: Any) -> MessagesRow:
        """As `Format.convert`, without the nulls that Arrow puts where other rows have a key."""
        converted = super().convert(row)
        converted.messages = [without_nulls(message) for message in converted.messages]
        if isinstance(converted.tools, list):
            converted.tools = [without_nulls(tool) for tool in converted.tools]
        return converted


_INSTEAD_OF_CONTENT = frozenset(
    {"tool_calls", "function_call", "reasoning_content", "reasoning", "thinking", "tool_call_id"}
)
"""What a message may hold instead of a content."""


def check_messages(messages: Messages, key: str) -> None:
    """Looks at the roles, contents and train flags of (M,) messages.

    Raises:
        RowRejectedError: `wrong_type`, or `not_text` for an image, a sound or the like within a content.
    """
    for index, message in enumerate(messages):
        role = message.get("role")
        if not isinstance(role, str):
            got = type(role).__name__ if "role" in message else "none"
            raise RowRejectedError("wrong_type", f"`{key}[{index}].role` must be a string, got {got}")
        content = message.get("content")
        if "content" not in message and not message.keys() & _INSTEAD_OF_CONTENT:
            names = ", ".join(f"`{name}`" for name in message)
            raise RowRejectedError("missing_key", f"`{key}[{index}]` has no `content`; it has {names}")
        if not isinstance(content, str) and content is not None:
            _check_parts(content, f"{key}[{index}].content")
        if "train" in message and not isinstance(message["train"], bool | None):
            # Any text would count as true, "false" as well, and train on what the person excluded.
            got = type(message["train"]).__name__
            raise RowRejectedError("wrong_type", f"`{key}[{index}].train` must be true or false, got {got}")


def _check_parts(content: Any, where: str) -> None:
    if not isinstance(content, list):
        got = type(content).__name__
        raise RowRejectedError("wrong_type", f"`{where}` must be a string or a list of parts, got {got}")
    for index, part in enumerate(content):
        if isinstance(part, str):
            continue
        if not isinstance(part, dict):
            got = type(part).__name__
            raise RowRejectedError("wrong_type", f"`{where}[{index}]` must be an object or a string, got {got}")
        kind = part.get("type", "text")
        if kind not in _TEXT_PARTS if isinstance(kind, str) else True:
            raise RowRejectedError("not_text", f"`{where}[{index}]` is of type {kind!r}: only text can be packed")
        if kind == "text" and not isinstance(part.get("text"), str):
            got = type(part["text"]).__name__ if "text" in part else "none"
            raise RowRejectedError("wrong_type", f"`{where}[{index}].text` must be a string, got {got}")


def tools_of(tools: list[dict[str, Any]] | str | None, key: str) -> list[dict[str, Any]] | None:
    """Tool schemas, given as a list or as the JSON of one; None when there are none.

    Raises:
        RowRejectedError: `bad_tools`, for a string that does not hold a JSON list of objects.
    """
    if not isinstance(tools, str):
        return tools
    if not tools or tools.isspace():
        return None
    try:
        decoded: list[dict[str, Any]] | None = _TOOLS.decode(tools)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RowRejectedError("bad_tools", f"`{key}` is not a JSON list of objects: {error}") from None
    return decoded


def without_nulls(message: dict[str, Any]) -> dict[str, Any]:
    """A message or a tool without the keys that are null, at any depth, its own `content` excepted.

    One Arrow column has one type, so a key of any message is a null key of all the others. A null that a
    person wrote cannot be told from these.
    """
    return {key: _pruned(value) for key, value in message.items() if value is not None or key == "content"}


def _pruned(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _pruned(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_pruned(inner) for inner in value]
    return value
