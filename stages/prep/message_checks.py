"""Checks messages, and brings what other tools write in them into one form: parts of contents, and flags that take a
message out of training.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from ...schemas.errors import RowRejectedError
from ...schemas.rows import Message, Messages
from .columns import check_weight
from .rowjson import decode_json, mismatch

# `reasoning_content` is DeepSeek's name, `reasoning` OpenRouter's, `thinking` that of gpt-oss.
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
# Key → why it is refused, for the message.
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
    """A part of a content that is a list, as OpenAI's API and LLaMA-Factory have them."""

    type: str = "text"
    text: str | None = None
    value: Any = None
    """What a part of LLaMA-Factory's v1 data holds instead of `text`."""
    train: Any = None
    weight: Any = None


class _Message(msgspec.Struct):
    """The keys of a message whose types are checked. Others may have any value."""

    role: str
    content: str | list[str | _Part] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    # OpenAI's form before `tool_calls`, which no template reads: the call would be lost.
    function_call: Any = None
    name: str | None = None
    train: bool | None = None
    """No text: even "false" would count as true, and train what the user excluded."""


def check_messages(messages: Messages, key: str, unread: Counter[str]) -> Messages:
    """Check (M,) messages, join contents that are lists, and give messages that are not trained `train: false`, by
    whatever name the flag has. The input is not changed.

    Args:
        key: the column of the messages, for errors.
        unread: counts the keys that are neither read nor refused; updated in place.

    Raises:
        RowRejectedError: `wrong_type`, `missing_key`, `weight`, `unusable_column`, or `not_text` for an image, a sound
            or the like.
    """
    checked: Messages = []
    for index, message in enumerate(messages):
        # Nearly all messages are a role and a text, and need no closer look, which takes eight times as long.
        is_plain = len(message) == 2 and type(message.get("content")) is str and type(message.get("role")) is str
        checked.append(message if is_plain else _checked(message, f"{key}[{index}]", unread))
    return checked


def calls_of(value: Any, where: str) -> list[dict[str, Any]]:
    """Calls in the form of `tool_calls`.

    Args:
        value: a call, a list of calls, or the JSON of one of these.
        where: names the value in errors.

    Raises:
        RowRejectedError: `bad_tool_call`.
    """
    if isinstance(value, str):
        value = decode_json(value, where, kind="the JSON of a call", reason="bad_tool_call")
    calls = value if isinstance(value, list) else [value]
    if not calls or not all(map(_is_call, calls)):
        raise RowRejectedError("bad_tool_call", f"{where}: a call is an object with `name` and `arguments`")
    return [{"type": "function", "function": call} for call in calls]


def _is_call(value: Any) -> bool:
    """Whether a value is a call, such as {"name": "add", "arguments": {"a": 1}}."""
    return isinstance(value, dict) and isinstance(value.get("name"), str) and "arguments" in value


def _checked(message: Message, where: str, unread: Counter[str]) -> Message:
    """One message, checked, with a text as its content and `train: false` if it is not trained.

    Args:
        where: the message's place, such as `messages[2]`.

    Raises:
        RowRejectedError: for the same reasons as `check_messages`.
    """
    try:
        decoded = msgspec.convert(message, _Message)
    except msgspec.ValidationError as error:
        complaint, path = mismatch(error)
        place = f"{where}.{path}" if path else where
        raise RowRejectedError("wrong_type", f"`{place}`: {complaint}") from None
    if decoded.function_call is not None:
        raise RowRejectedError("wrong_type", f"`{where}.function_call`: templates read only a list `tool_calls`")
    if isinstance(decoded.content, list):
        message = _with_joined_parts(message, decoded.content, f"{where}.content", unread)
    elif decoded.content is None:
        _require_replaced_content(message, where)
    for key, value in message.items():
        if value is None or key in KNOWN_KEYS:
            continue
        if key in _REFUSED:
            raise RowRejectedError("unusable_column", f"`{where}.{key}` is not read: {_REFUSED[key]}")
        if key not in _FLAGS:  # `_with_flags` reads those
            unread[str(key)] += 1
    return _with_flags(message, decoded.train, where)


def _require_replaced_content(message: Message, where: str) -> None:
    """Refuse a message that has neither a content nor anything that may replace it, such as a tool call."""
    if any(message.get(name) is not None for name in REPLACES_CONTENT):
        return
    names = ", ".join(f"`{name}`" for name in message)
    lack = "`content` is null and nothing replaces it" if "content" in message else "has no `content`"
    raise RowRejectedError("missing_key", f"`{where}` {lack}; it has {names}")


# Flags and weights


def _with_flags(message: Message, train: bool | None, where: str) -> Message:
    """A message whose flags and weights of other names have become `train` and `weight`: `masked: true` becomes
    `train: false`, and `loss_weight: 0.5` becomes `weight: 0.5`.

    Args:
        train: the message's own flag; None if it has none.

    Raises:
        RowRejectedError: `weight`, for a value that is no flag or weight, or for two that contradict each other.
    """
    # Both by key, as the message names them; flags say whether it is trained.
    weights: dict[str, float] = {}
    flags: dict[str, bool] = {}
    if message.get("weight") is not None:
        weights["weight"] = check_weight(message["weight"], f"{where}.weight")
    if train is not None:
        flags["train"] = train
    foreign_keys = [key for key in message if key in _FLAGS]
    for key in foreign_keys:
        value = message[key]
        if value is None:
            continue
        if key in WEIGHTS:
            weights[key] = check_weight(value, f"{where}.{key}")
        else:
            flags[key] = _flag(key, value, f"{where}.{key}")
    _require_agreement(message, flags, weights, where)
    weight = next(iter(weights.values()), 1.0)  # of several, all are equal
    if foreign_keys:
        message = {key: value for key, value in message.items() if key not in _FLAGS}
        # A weight of 1 needs no key, and one of 0 becomes `train: false` below.
        if weight not in (0, 1):
            message["weight"] = weight
    is_trained = weight != 0 and all(flags.values())
    if is_trained or message.get("train") is False:
        return message
    return {**message, "train": False}


def _flag(key: str, value: Any, where: str) -> bool:
    """Whether the flag of another tool says that its message is trained: `loss: true` and `masked: false` do."""
    if not isinstance(value, bool | int | float) or value not in (0, 1):
        rule = f"`{where}` is {repr(value)[:40]}: a flag is true or false"
        raise RowRejectedError("weight", f"{rule}; `weight` says how much a message counts")
    if key in MASKED_IF_TRUE:
        return not value
    return bool(value)


def _require_agreement(message: Message, flags: Mapping[str, bool], weights: Mapping[str, float], where: str) -> None:
    """Refuse a message whose flags and weights contradict each other. Those of two tools may stand beside each other,
    as long as they say the same.

    Args:
        flags: key → whether it says that the message is trained.
        weights: key → the weight that it gives.
    """
    weights_differ = len(set(weights.values())) > 1
    flags_differ = len(set(flags.values())) > 1
    # As `train: true` beside `weight: 0`.
    is_trained_without_weight = any(flags.values()) and 0 in weights.values()
    if weights_differ or flags_differ or is_trained_without_weight:
        contradiction = " and ".join(f"{key}: {_as_json(message[key])}" for key in (*flags, *weights))
        raise RowRejectedError("weight", f"`{where}` says {contradiction}; say one")


def _as_json(value: Any) -> str:
    """A flag or a weight as the row has it: `true`, and not Python's `True`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


# Contents that are lists of parts


def _with_joined_parts(message: Message, parts: list[str | _Part], where: str, unread: Counter[str]) -> Message:
    """A message whose content is the text of its parts, a part a line. A thought and calls among them, as
    LLaMA-Factory's v1 data has them, get keys of their own.
    """
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for index, part in enumerate(parts):
        place = f"{where}[{index}]"
        if isinstance(part, str):
            texts.append(part)
        elif part.type == "tool_call" and part.text is None and part.value is not None:
            _require_no_weight(part, place)
            calls += calls_of(part.value, f"`{place}.value`")
        elif part.type == "reasoning":
            thoughts.append(_text_of_part(part, place))
        else:
            texts.append(_text_of_part(part, place))
    # From the message itself: a decoded part no longer has the keys that `_Part` does not name.
    unread.update(_unknown_part_keys(message["content"]))
    joined: Message = {**message, "content": "\n".join(texts)}
    # Only keys with a value: a message without calls must not get an empty `tool_calls`.
    for key, value in (("tool_calls", calls), ("reasoning_content", "\n".join(thoughts))):
        if value and message.get(key):
            raise RowRejectedError("wrong_type", f"`{where}` has a part that is also the key `{key}`; keep one")
        if value:
            joined[key] = value
    return joined


def _text_of_part(part: _Part, place: str) -> str:
    """The text of a part that is a text or a thought.

    Raises:
        RowRejectedError: `weight`, or `not_text` for an image, a sound or the like.
    """
    _require_no_weight(part, place)
    text = part.value if part.text is None else part.text
    if part.type not in (*_TEXT_PARTS, "reasoning") or not isinstance(text, str):
        raise RowRejectedError("not_text", _describe_misfit(part, place))
    return text


def _require_no_weight(part: _Part, place: str) -> None:
    """Refuse a part with a weight or a flag of its own."""
    # A template joins the parts of a message before anything is known of tokens: it would train all or none of them.
    if part.train is not None or part.weight is not None:
        raise RowRejectedError("weight", f"`{place}` has a weight or `train`; give it to the message")


def _describe_misfit(part: _Part, place: str) -> str:
    """Why a part of a content cannot be used, as a sentence."""
    if part.type in _TEXT_PARTS and part.value is not None:
        return f"`{place}` has a `value` that is no text, and no `text`"
    return (
        f"`{place}` is of type {part.type!r}: only parts with a `text` can be packed; a thought has a key of its own, "
        "`reasoning_content`"
    )


def _unknown_part_keys(parts: list[Any]) -> Iterator[str]:
    """`content[].KEY` for each key of a part that is not read."""
    for part in parts:
        if not isinstance(part, Mapping):
            continue
        for key, value in part.items():
            if key not in _PART_KEYS and value is not None:
                yield f"content[].{key}"
