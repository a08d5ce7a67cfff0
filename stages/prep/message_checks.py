"""Checks messages, and brings what other tools write in them into one form: parts of contents, and flags that take a
message out of training.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from ...schemas.errors import RowRejectedError
from ...schemas.rows import Message, Messages
from .base import check_weight
from .rowjson import decode_json, mismatch

REPLACES_CONTENT = ("tool_calls", "reasoning_content", "reasoning", "thinking", "tool_call_id")
"""Keys that a message may have instead of `content`."""
KNOWN_KEYS = frozenset({"role", "content", "train", "weight", *REPLACES_CONTENT})
"""Keys of a message that are read, or that only link messages."""
TRAINED_IF_TRUE = ("loss", "loss_mask", "trainable", "train_on_turn", "training", "learn")
"""Flags of ms-swift (`loss`), verl (`loss_mask`, `trainable`), Axolotl (`training`) and others: false or 0 takes the
message out of training."""
MASKED_IF_TRUE = ("masked",)
"""Flags of the opposite sense."""
WEIGHTS = ("loss_weight", "loss_scale")
"""Weights of LLaMA-Factory's v1 data and of ms-swift: what `weight` is here."""
_FLAGS = frozenset({*TRAINED_IF_TRUE, *MASKED_IF_TRUE, *WEIGHTS})
_INSTEAD = "say train: false for a message that is not trained"
_REFUSED = {
    "mask": f"`mask` means trained in some tools and not trained in others; {_INSTEAD}",
    **dict.fromkeys(
        ("training_detail", "reasoning_training_detail", "train_detail", "training_details"),
        f"parts of a message cannot be left out of training; {_INSTEAD}, or split the message",
    ),
}
"""Keys with which other tools decide what is trained, and which cannot be honoured."""
_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})
_PART_KEYS = frozenset({"type", "text", "value", "train", "weight"})


class _Part(msgspec.Struct):
    type: str = "text"
    text: str | None = None
    value: Any = None
    """What a part of LLaMA-Factory's v1 data holds instead of `text`."""
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


def check_messages(messages: Messages, key: str, unread: Counter[str]) -> Messages:
    """Check (M,) messages, join contents that are lists, and give messages that are not trained `train: false`, by
    whatever name the flag has. The input is not changed.

    Args:
        unread: counts the keys that are neither read nor refused; updated in place.

    Raises:
        RowRejectedError: `wrong_type`, `missing_key`, `weight`, `unusable_column`, or `not_text` for an image, a sound
            or the like.
    """
    return [
        message
        if len(message) == 2 and type(message.get("content")) is str and type(message.get("role")) is str
        else _checked(message, f"{key}[{index}]", unread)
        for index, message in enumerate(messages)
    ]


def calls_of(value: Any, where: str) -> list[dict[str, Any]]:
    """The `tool_calls` of a call or a list of calls, or of their JSON.

    Raises:
        RowRejectedError: `bad_tool_call`.
    """
    if isinstance(value, str):
        value = decode_json(value, where, kind="the JSON of a call", reason="bad_tool_call")
    calls = value if isinstance(value, list) else [value]
    for call in calls or [None]:
        if not isinstance(call, dict) or not isinstance(call.get("name"), str) or "arguments" not in call:
            raise RowRejectedError("bad_tool_call", f"{where}: a call is an object with `name` and `arguments`")
    return [{"type": "function", "function": call} for call in calls]


def _checked(message: Message, where: str, unread: Counter[str]) -> Message:
    try:
        read = msgspec.convert(message, _Message)
    except msgspec.ValidationError as error:
        complaint, path = mismatch(error)
        raise RowRejectedError("wrong_type", f"`{where}{path and f'.{path}'}`: {complaint}") from None
    if read.function_call is not None:
        raise RowRejectedError("wrong_type", f"`{where}.function_call`: templates read only a list `tool_calls`")
    if isinstance(read.content, list):
        message = _joined(message, read.content, f"{where}.content", unread)
    elif read.content is None and not any(message.get(name) is not None for name in REPLACES_CONTENT):
        names = ", ".join(f"`{name}`" for name in message)
        lack = "`content` is null and nothing replaces it" if "content" in message else "has no `content`"
        raise RowRejectedError("missing_key", f"`{where}` {lack}; it has {names}")
    for key in [key for key in message if key not in KNOWN_KEYS and message[key] is not None]:
        if key in _REFUSED:
            raise RowRejectedError("unusable_column", f"`{where}.{key}` is not read: {_REFUSED[key]}")
        if key not in _FLAGS:
            unread[str(key)] += 1
    return _with_flags(message, read.train, where)


def _with_flags(message: Message, train: bool | None, where: str) -> Message:
    """A message whose flags and weights of other names have become `train` and `weight`.

    Raises:
        RowRejectedError: `weight`, for a value that is not a weight, or for two weights that contradict each other.
    """
    weights = (
        {"weight": check_weight(message["weight"], f"{where}.weight")} if message.get("weight") is not None else {}
    )
    flags = {} if train is None else {"train": train}
    foreign = [key for key in message if key in _FLAGS]
    for key in foreign:
        value = message[key]
        if value is None:
            continue
        if key in WEIGHTS:
            weights[key] = check_weight(value, f"{where}.{key}")
        elif isinstance(value, bool | int | float) and value in (0, 1):
            flags[key] = bool(value) == (key not in MASKED_IF_TRUE)
        else:
            rule = f"`{where}.{key}` is {repr(value)[:40]}: a flag is true or false"
            raise RowRejectedError("weight", f"{rule}; `weight` says how much a message counts")
    weight = next(iter(weights.values()), 1.0)
    is_flagged = any(flags.values())
    # Two tools' flags may stand beside each other, as long as they say the same.
    if len(set(weights.values())) > 1 or len(set(flags.values())) > 1 or (is_flagged and not weight):
        contradiction = " and ".join(f"{key}: {_shown(message[key])}" for key in (*flags, *weights))
        raise RowRejectedError("weight", f"`{where}` says {contradiction}; say one")
    if foreign:
        message = {key: value for key, value in message.items() if key not in _FLAGS}
        if weight not in (0, 1):
            message["weight"] = weight
    trained = bool(weight) and all(flags.values())
    return message if trained or message.get("train") is False else {**message, "train": False}


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _joined(message: Message, content: list[str | _Part], where: str, unread: Counter[str]) -> Message:
    """A message whose content is the text of its parts, a part a line. A thought and calls among them, as
    LLaMA-Factory's v1 data has them, get keys of their own."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for index, part in enumerate(content):
        if isinstance(part, str):
            texts.append(part)
            continue
        place = f"{where}[{index}]"
        if part.train is not None or part.weight is not None:
            raise RowRejectedError("weight", f"`{place}` has a weight or `train`; give it to the message")
        text = part.value if part.text is None else part.text
        if part.type == "tool_call" and part.text is None and part.value is not None:
            calls += calls_of(part.value, f"`{place}.value`")
        elif part.type == "reasoning" and isinstance(text, str):
            thoughts.append(text)
        elif part.type in _TEXT_PARTS and isinstance(text, str):
            texts.append(text)
        else:
            raise RowRejectedError("not_text", _misfit(part, place))
    unread.update(_unknown_part_keys(message["content"]))
    keys_of_parts = {"tool_calls": calls, "reasoning_content": "\n".join(thoughts)}
    for key, value in keys_of_parts.items():
        if value and message.get(key):
            raise RowRejectedError("wrong_type", f"`{where}` has a part that is also the key `{key}`; keep one")
    return {**message, "content": "\n".join(texts), **{key: value for key, value in keys_of_parts.items() if value}}


def _misfit(part: _Part, place: str) -> str:
    if part.type in _TEXT_PARTS and part.value is not None:
        return f"`{place}` has a `value` that is no text, and no `text`"
    return (
        f"`{place}` is of type {part.type!r}: only parts with a `text` can be packed; a thought has a key of its own, "
        "`reasoning_content`"
    )


def _unknown_part_keys(parts: list[Any]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, Mapping):
            yield from (
                f"content[].{key}" for key, value in part.items() if key not in _PART_KEYS and value is not None
            )
