"""Conversations under `messages`, one example per row or per turn of the assistant; and what all conversational formats
share.

A message is an object with a `role`. Its keys and values stay unchanged, including tool calls and their arguments (a
string or an object), but for two: a content that is a list of texts becomes one text, a part a line, as servers join
them, and a `weight` of 0 also gives `train: false`.
"""

from collections import Counter
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, ClassVar

import msgspec

from ...schemas.errors import RowRejectedError
from ...schemas.rows import Example, Message, Messages
from .base import Column, Columns, Format, check_weight, mismatch
from .rowjson import decode_json

OBJECTS = "a JSON list of objects"
TOOLS = Column(list[dict[str, Any]] | None, nested=True, cell=OBJECTS)
"""The column of the tools; rows may lack it."""
MEDIA = {
    name: Column(Any, refused=("not_text", "only text can be packed; remove the column if the text needs none"))
    for name in ("image", "images", "audio", "audios", "video", "videos")
}
"""Columns that hold a conversation's images, sounds or videos."""
_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
_INSTEAD_OF_CONTENT = ("tool_calls", "reasoning_content", "reasoning", "thinking", "tool_call_id")
"""Keys that a message may have instead of `content`."""


class MessagesFormat(Format):
    """Conversations. If the last message is the assistant's, it is the completion and all messages before it are the
    prompt. A format with a column `system` has there a text that opens the conversation.

    Messages keep every key and value as they were decoded, `content` parts and tool calls included.
    """

    name = "messages"
    columns: ClassVar[Columns] = {
        "messages": Column(list[dict[str, Any]], required=True, nested=True, cell=OBJECTS),
        "tools": TOOLS,
        "functions": Column(Any, refused=("wrong_type", "it is not read; give `tools`, or keys: {tools: functions}")),
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
        return _turns_have(self.turn_key, row.get(self.keys[self.field]))

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

    def examples(self, row: Any, line: int, skipped: Counter[str]) -> list[Example]:
        """See `Format.examples`.

        Rejects `empty`, `empty_completion`, `wrong_type`, `missing_key`, `weight`, `not_text`, `two_systems`.
        """
        key, given = self.keys[self.field], getattr(row, self.field)
        if not given:
            raise RowRejectedError("empty", f"`{key}` has no messages")
        messages = check_messages([self.message(one, f"{key}[{index}]") for index, one in enumerate(given)], key)
        require_answer(messages, key)
        if row.system and messages[0]["role"] != "system":
            messages = [turn("system", row.system), *messages]
        elif row.system and messages[0].get("content") != row.system:
            where = f"`{self.keys['system']}` is a system text, and `{key}`"
            raise RowRejectedError("two_systems", f"{where} begins with another; leave one out")
        return conversation(messages, row.tools, line, per_turn=self.options.per_turn, skipped=skipped)


def _turns_have(key: str, value: Any) -> bool:
    """Whether a value is a conversation, or its JSON as in a cell of CSV, whose turns all have a key."""
    if isinstance(value, str):
        try:
            value = decode_json(value, "") if value.lstrip().startswith("[") else None
        except RowRejectedError:
            return False
    if not isinstance(value, list) or not value or not all(isinstance(one, Mapping) for one in value):
        return False
    return key == next((name for name in ("from", "role") if all(name in one for one in value)), None)


def conversation(
    messages: Messages,
    tools: list[dict[str, Any]] | None,
    line: int,
    *,
    per_turn: bool,
    skipped: Counter[str],
    start: int | None = None,
) -> list[Example]:
    """The examples of (M,) messages: prompt and completion, or one example for each assistant turn.

    Args:
        per_turn: `sub` counts the turns from 0. All share one `group`, a digest of the conversation, so that a held-out
            split keeps them together. Turns with `train: false` are skipped as `not_trained`, empty ones as
            `empty_completion`. Messages after the last turn are in no example. A row without a turn to train stays one
            example.
        start: the first message of the completion. None: the last one, if it is the assistant's.
    """
    cut = len(messages) - (messages[-1]["role"] == "assistant") if start is None else start
    whole = Example(line, -1, "", messages[:cut], messages[cut:], None, tools)
    if not per_turn:
        return [whole]
    turns = [i for i in range(start or 0, len(messages)) if messages[i]["role"] == "assistant"]
    wanted = [i for i in turns if messages[i].get("train") is not False]
    trained = [i for i in wanted if not is_silent(messages[i])]
    if not trained:
        return [whole]
    skipped.update(+Counter(not_trained=len(turns) - len(wanted), empty_completion=len(wanted) - len(trained)))
    group = blake2b(msgspec.json.encode([messages, tools]), digest_size=8).hexdigest()
    return [
        whole._replace(sub=sub, group=group, prompt=messages[:i], completion=[messages[i]])
        for sub, i in enumerate(trained)
    ]


def turn(role: str, text: str) -> Message:
    """A message whose content is a text."""
    return {"role": role, "content": text}


def is_blank(value: Any) -> bool:
    """Whether a value is empty, or a text of white space only."""
    return not value or (isinstance(value, str) and value.isspace())


def is_silent(message: Message) -> bool:
    """Whether a message has no content but white space, no tool call and no reasoning."""
    return all(is_blank(message.get(key)) for key in ("content", *_INSTEAD_OF_CONTENT))


def require_answer(messages: Messages, key: str) -> None:
    """Raise RowRejectedError `empty_completion` if the last message is the assistant's and says nothing."""
    if messages and messages[-1]["role"] == "assistant" and is_silent(messages[-1]):
        raise RowRejectedError("empty_completion", f"`{key}[{len(messages) - 1}]`, the last answer, is empty")


class _Part(msgspec.Struct):
    type: str = "text"
    text: str | None = None
    train: Any = None
    weight: Any = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[str | _Part] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    function_call: Any = None
    name: str | None = None
    train: bool | None = None
    """Any text would count as true, even "false", and train what the user excluded."""


def check_messages(messages: Messages, key: str) -> Messages:
    """Check (M,) messages, join contents that are lists, and give messages of weight 0 the flag. The input is not
    changed.

    Raises:
        RowRejectedError: `wrong_type`, `missing_key`, `weight`, or `not_text` for an image, a sound or the like.
    """
    return [
        message
        if len(message) == 2 and type(message.get("content")) is str and type(message.get("role")) is str
        else _checked(message, f"{key}[{index}]")
        for index, message in enumerate(messages)
    ]


def _checked(message: Message, where: str) -> Message:
    try:
        seen = msgspec.convert(message, _Message)
    except msgspec.ValidationError as error:
        what, path = mismatch(error)
        raise RowRejectedError("wrong_type", f"`{where}{path and f'.{path}'}`: {what}") from None
    if seen.function_call is not None:
        raise RowRejectedError("wrong_type", f"`{where}.function_call`: templates read only a list `tool_calls`")
    if isinstance(seen.content, list):
        message = {**message, "content": _joined(seen.content, f"{where}.content")}
    elif seen.content is None and not any(message.get(name) is not None for name in _INSTEAD_OF_CONTENT):
        names = ", ".join(f"`{name}`" for name in message)
        lack = "`content` is null and nothing replaces it" if "content" in message else "has no `content`"
        raise RowRejectedError("missing_key", f"`{where}` {lack}; it has {names}")
    weight = check_weight(message.get("weight"), f"{where}.weight")
    if seen.train and not weight:
        raise RowRejectedError("weight", f"`{where}` says train: true and weight: 0; say one")
    return message if weight else {**message, "train": False}


def _joined(content: list[str | _Part], where: str) -> str:
    texts = []
    for index, part in enumerate(content):
        if isinstance(part, str):
            texts.append(part)
            continue
        if part.train is not None or part.weight is not None:
            raise RowRejectedError("weight", f"`{where}[{index}]` has a weight or `train`; give it to the message")
        if part.type not in _TEXT_PARTS or part.text is None:
            what = f"`{where}[{index}]` is of type {part.type!r}"
            raise RowRejectedError(
                "not_text",
                f"{what}: only parts with a `text` can be packed; a thought has a key of its own, `reasoning_content`",
            )
        texts.append(part.text)
    return "\n".join(texts)
