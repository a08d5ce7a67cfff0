"""Checks messages and brings them into one form for all conversational formats.

A message is an object with a `role`. Its keys and values stay unchanged, including tool calls and their arguments (a
string or an object), but for two: a content that is a list of texts becomes one text, a part a line, as servers join
them, and a `weight` of 0 also gives `train: false`.
"""

from collections import Counter
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, TypeAlias

import msgspec

from ...schemas.errors import RowRejectedError
from ...schemas.rows import Example, Message, Messages
from .base import Column, check_weight, mismatch
from .rowjson import decode_json

Objects: TypeAlias = list[dict[str, Any]] | str | None
"""A list of objects, or its JSON text, as in a CSV cell."""

MEDIA = {name: Column(Any) for name in ("image", "images", "audio", "audios", "video", "videos")}
"""Columns that hold a conversation's images, sounds or videos."""
TOOLS = Column(Objects, nested=True)
"""The column of the tools; rows may lack it."""
_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
_INSTEAD_OF_CONTENT = ("tool_calls", "reasoning_content", "reasoning", "thinking", "tool_call_id")
"""Keys that a message may have instead of `content`."""


def check_messages(messages: Messages, key: str) -> Messages:
    """Check (M,) messages, join contents that are lists, and give messages of weight 0 the flag. The input is not
    changed.

    Raises:
        RowRejectedError: `wrong_type`, `missing_key`, `weight`, or `not_text` for an image, a sound or the like.
    """
    changed: Messages | None = None
    for index, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        if len(message) == 2 and type(content) is str and type(role) is str:
            continue
        said = _checked(message, f"{key}[{index}]")
        if said is not message:
            changed = list(messages) if changed is None else changed
            changed[index] = said
    return messages if changed is None else changed


def require_answer(messages: Messages, key: str) -> None:
    """Raise RowRejectedError `empty_completion` if the last message is the assistant's and says nothing."""
    if messages and messages[-1]["role"] == "assistant" and is_silent(messages[-1]):
        raise RowRejectedError("empty_completion", f"`{key}[{len(messages) - 1}]`, the last answer, is empty")


def is_silent(message: Message) -> bool:
    """Whether a message has no content but white space, no tool call and no reasoning."""
    return all(is_blank(message.get(key)) for key in ("content", *_INSTEAD_OF_CONTENT))


def is_blank(value: Any) -> bool:
    """Whether a value is empty, or a text of white space only."""
    return not value or (isinstance(value, str) and value.isspace())


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


def objects_of(value: Objects, key: str, reason: str = "wrong_type") -> list[dict[str, Any]] | None:
    """A list of objects, given as such or as JSON text; None for null and blank text.

    Raises:
        RowRejectedError: `reason`, if the text is not a JSON list of objects.
    """
    if not isinstance(value, str):
        return value
    if not value or value.isspace():
        return None
    found: list[dict[str, Any]] | None = decode_json(
        value, f"`{key}`", list[dict[str, Any]] | None, what="a JSON list of objects", reason=reason
    )
    return found


def tools_of(row: Any, keys: Mapping[str, str]) -> list[dict[str, Any]] | None:
    """The tool schemas of a row; None when there are none.

    Raises:
        RowRejectedError: `bad_tools`, if their text is not a JSON list of objects.
    """
    return objects_of(row.tools, keys.get("tools", ""), "bad_tools")


def refuse_media(row: Any) -> None:
    """Raise RowRejectedError `not_text` for a row with images, sounds or videos in separate columns."""
    for name in MEDIA:
        if getattr(row, name):
            raise RowRejectedError(
                "not_text", f"`{name}` is not empty: only text can be packed; remove the column if the text needs none"
            )


def turn(role: str, text: str) -> Message:
    """A message whose content is a text."""
    return {"role": role, "content": text}


def turns_have(key: str, value: Any) -> bool:
    """Whether a value is a conversation, or its JSON as in a cell of CSV, whose turns all have a key; for detection."""
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
    skipped: Counter[str] | None,
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
    if skipped is not None and len(turns) > len(wanted):
        skipped["not_trained"] += len(turns) - len(wanted)
    if skipped is not None and len(wanted) > len(trained):
        skipped["empty_completion"] += len(wanted) - len(trained)
    group = blake2b(msgspec.json.encode([messages, tools]), digest_size=8).hexdigest()
    return [
        whole._replace(sub=sub, group=group, prompt=messages[:i], completion=[messages[i]])
        for sub, i in enumerate(trained)
    ]
