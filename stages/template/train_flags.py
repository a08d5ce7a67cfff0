"""What the data take out of training: flags of messages, and of parts of their contents.

A part of a content (`{"type": "text", "text": …, "train": false}`) has the flag of its message unless it has its own.
Parts are followed through the template like contents. If the text does not show all of a flagged part, the row is
rejected: nothing is guessed.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ...schemas.errors import RowRejectedError
from ...schemas.rows import THOUGHT_KINDS, Message, Messages
from .assistant_turns import MESSAGE, REASONING, Word, code_of, part_of
from .marked import PART_KEYS, is_reasoning_part
from .rendered import Runs


class PartFlag(NamedTuple):
    """A part that does not count in the loss as its message does."""

    train: float
    """False, or True in a message that is not trained."""
    text: str


def loss_weight(message: Message) -> float:
    """How much a message counts in the loss: False (not at all) if it says `train: false` or has a `weight` of 0, its
    `weight` if that is another number than 1, else True.
    """
    weight = message.get("weight")
    if message.get("train") is False or weight == 0:
        return False
    return True if weight is None or weight == 1 else float(weight)


def part_flags(messages: Messages) -> dict[int, PartFlag]:
    """The parts with flags of their own, by code."""
    out: dict[int, PartFlag] = {}
    for index, message in enumerate(messages):
        content = message.get("content")
        if type(content) is not list:
            continue
        whole = loss_weight(message)
        for number, part in enumerate(content, 1):
            flag = part.get("train") if isinstance(part, dict) else None
            if flag is not None and flag is not bool(whole):
                code = code_of(index, number, REASONING if is_reasoning_part(part) else 0)
                out[code] = PartFlag(flag, "".join(_texts(part)))
    return out


def _texts(part: Any) -> list[str]:
    said = [part] if isinstance(part, str) else [part.get(key) for key in PART_KEYS]
    return [text for text in said if isinstance(text, str)]


def without_flags(messages: Messages) -> Messages:
    """The messages without the flags of parts, which are not for the template."""
    out: Messages = []
    for message in messages:
        content = message.get("content")
        if type(content) is list and any(isinstance(part, dict) and "train" in part for part in content):
            bare = [
                {key: value for key, value in part.items() if key != "train"} if isinstance(part, dict) else part
                for part in content
            ]
            message = {**message, "content": bare}
        out.append(message)
    return out


def joined_words(messages: Messages, joined: Messages, flagged: Mapping[int, PartFlag]) -> dict[int, tuple[Word, ...]]:
    """The words of contents whose parts were joined to one text, for messages that have flagged parts.

    Args:
        joined: the messages with such contents as texts.
    """
    out: dict[int, tuple[Word, ...]] = {}
    for index in {code >> MESSAGE for code in flagged}:
        if type(joined[index].get("content")) is not str:
            continue
        words, done = [], 0
        for number, part in enumerate(messages[index]["content"], 1):
            end = done + len(part if isinstance(part, str) else part["text"])
            words.append((done, end, code_of(index, number)))
            done = end
        out[index] = tuple(words)
    return out


def flag_parts(
    text: str,
    runs: Runs,
    words: Sequence[Word],
    flags: Sequence[float],
    flagged: Mapping[int, PartFlag],
    name: str,
) -> Runs:
    """Divide runs at parts with flags of their own.

    What the template writes between two parts is trained only if both are. What it writes around the words of a thought
    has the flag of these words; what it writes before and after other words has that of the message.

    Args:
        text: a rendered conversation.
        words: of the text, sorted.
        flags: the flag or weight of each message.
        name: the template's, for errors.

    Raises:
        RowRejectedError: `train_flags`, if the words do not show all of a flagged part.
    """
    said: dict[int, list[str]] = {}
    for low, high, code in words:
        if code in flagged:
            said.setdefault(code, []).append(text[low:high])
    for code, part in flagged.items():
        if "".join(said.get(code, ())).strip() != part.text.strip():
            raise RowRejectedError(
                "train_flags",
                f"message {(code >> MESSAGE) + 1}: part {part_of(code)} of its content says `train: "
                f"{str(bool(part.train)).lower()}`, but the chat template '{name}' does not write its text as it is; "
                "make it a message of its own, or remove the flag",
            )
    plain = [word for word in words if word[2] >= 0 and word[0] < word[1]]
    out: list[tuple[int, int, int, float]] = []
    done = place = 0
    for end, kind, turn, train in zip(*runs, strict=True):
        begin = done
        while place < len(plain) and plain[place][1] <= done:
            place += 1
        last: tuple[int, float] | None = None  # message and flag of the last word in this run
        at = place
        while at < len(plain) and plain[at][0] < end:
            low, high, code = plain[at]
            low, high, owner = max(low, begin), min(high, end), code >> MESSAGE
            own = flagged[code].train if code in flagged else flags[owner]
            if last is not None and last[0] == owner:
                between = min(last[1], own)
            else:
                between = own if last is None and kind in THOUGHT_KINDS else train
            _add(out, low, kind, turn, between, done)
            done = max(done, low)
            _add(out, high, kind, turn, own, done)
            done, last, at = max(done, high), (owner, own), at + 1
        _add(out, end, kind, turn, last[1] if last is not None and kind in THOUGHT_KINDS else train, done)
        done = max(done, end)
    return Runs(*zip(*out, strict=True)) if out else runs


def _add(out: list[tuple[int, int, int, float]], end: int, kind: int, turn: int, train: float, done: int) -> None:
    """Append a run, unless it is empty; join it with the one before it if they differ in nothing."""
    if end <= done:
        return
    if out and out[-1][1:] == (kind, turn, train):
        out.pop()
    out.append((end, kind, turn, train))


def flags_among(flags: Iterable[float], flagged: Mapping[int, PartFlag], messages: range) -> set[float]:
    """The flags or weights of some messages and of their parts.

    Args:
        flags: of these messages.
        messages: their indices.
    """
    return {*flags, *(part.train for code, part in flagged.items() if code >> MESSAGE in messages)}
