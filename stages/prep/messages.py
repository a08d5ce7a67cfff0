"""Conversations under `messages`, one example per row or per turn of the assistant; and how the other conversational
formats make examples of messages.

A message is an object with a `role`. Its keys and values stay unchanged, including tool calls and their arguments (a
string or an object), but for two: a content that is a list of texts becomes one text, a part a line, as servers join
them; and the flags with which other tools take a message out of training become `train: false` or a `weight`.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from ...schemas.errors import RowRejectedError
from ...schemas.fingerprint import short_hash
from ...schemas.rows import Example, Message, Messages
from .base import Format
from .columns import CHAT_COLUMNS, OBJECTS, SYSTEM, TEMPLATE_INPUTS, Column, Columns
from .message_checks import REPLACES_CONTENT, check_messages
from .rowjson import decode_json


class MessagesFormat(Format):
    """Conversations. If the last message is the assistant's, it is the completion and all messages before it are the
    prompt. The text of a column `system` opens the conversation.

    Messages keep their keys and values. Only contents that are lists of texts are joined, and flags of other tools
    become `train: false` or a `weight`.
    """

    name = "messages"
    columns: ClassVar[Columns] = {
        "messages": Column(list[dict[str, Any]], required=True, nested=True, cell=OBJECTS),
        **CHAT_COLUMNS,
    }
    other_names = ("messages", "conversations", "conversation")
    values = "a list of objects with `role`"
    has_one_list = True
    default_style = "chat"
    turn_key: ClassVar[str] = "role"
    """The key that says who speaks, by which detection tells this format from ShareGPT's."""

    def fits(self, row: Mapping[str, Any]) -> bool:
        """Whether the column of turns has a list of them, all with this format's key."""
        return _turn_key_of(row.get(self.keys[self.field])) == self.turn_key

    @property
    def field(self) -> str:
        """The field of the column of turns."""
        return next(iter(self.columns))

    def message(self, source_turn: Message, where: str) -> Message:
        """A turn as a message with `role` and `content`. Here, it is one already.

        Args:
            where: the turn's place, such as `messages[2]`, for errors.
        """
        return source_turn

    def examples(self, row: Any, line: int, skipped: Counter[str]) -> list[Example]:
        """One conversation; with `per_turn`, one for each answer in it.

        Rejects `empty`, `empty_completion`, `wrong_type`, `missing_key`, `weight`, `not_text`, `two_systems`.
        """
        key = self.keys[self.field]
        source_turns = getattr(row, self.field)
        if not source_turns:
            raise RowRejectedError("empty", f"`{key}` has no messages")
        messages = check_messages(
            [self.message(source_turn, f"{key}[{index}]") for index, source_turn in enumerate(source_turns)],
            key,
            self.unread,
        )
        require_answer(messages, key)
        messages = with_system(messages, row, self.keys, key)
        return conversation(messages, row.tools, line, per_turn=self.options.per_turn, skipped=skipped)


def _turn_key_of(value: Any) -> str | None:
    """The key, `from` or `role`, that all turns of a conversation have. None for anything else.

    Args:
        value: a list of turns, or its JSON as in a cell of CSV.
    """
    turns = value
    if isinstance(value, str):
        try:
            turns = decode_json(value, where="") if value.lstrip().startswith("[") else None
        except RowRejectedError:
            return None
    if not isinstance(turns, list) or not turns or not all(isinstance(item, Mapping) for item in turns):
        return None
    # `from` first: turns with both keys are ShareGPT's, whose format reads both.
    for key in ("from", "role"):
        if all(key in item for item in turns):
            return key
    return None


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
        start: index of the first message of the completion, where the row says it. None: the completion is the last
            message if that is the assistant's, else empty.
    """
    completion_start = start
    if completion_start is None:
        ends_with_answer = messages[-1]["role"] == "assistant"
        completion_start = len(messages) - 1 if ends_with_answer else len(messages)
    whole_example = Example(
        line,
        sub=-1,
        group="",
        prompt=messages[:completion_start],
        completion=messages[completion_start:],
        text=None,
        tools=tools,
    )
    if not per_turn:
        return [whole_example]
    # All three are indices of messages: all turns of the assistant, those of them without `train: false`, and those of
    # the latter that say something. Turns of a separate prompt are not trained, so they give no examples.
    turns = [index for index in range(start or 0, len(messages)) if messages[index]["role"] == "assistant"]
    supervised = [index for index in turns if messages[index].get("train") is not False]
    trained = [index for index in supervised if not is_silent(messages[index])]
    if not trained:
        return [whole_example]
    # The plus sign drops counts of 0.
    skipped.update(+Counter(not_trained=len(turns) - len(supervised), empty_completion=len(supervised) - len(trained)))
    group = short_hash(msgspec.json.encode([messages, tools]), size=8)
    return [
        whole_example._replace(sub=sub, group=group, prompt=messages[:index], completion=[messages[index]])
        for sub, index in enumerate(trained)
    ]


def with_system(messages: Messages, row: Any, keys: Mapping[str, str], messages_key: str) -> Messages:
    """(M,) messages, opened by the system text of the row's own column, if it has one and they do not begin with it.

    Args:
        row: as `Format.decode` returns it.
        keys: the name of each column that is read, by field.
        messages_key: the column of the messages, for errors.

    Raises:
        RowRejectedError: `two_systems`, if the row has two that differ.
    """
    column, text = _system_text(row, keys)
    if not text:
        return messages
    # Without messages, as of an empty prompt, the system text is the only one.
    if not messages or messages[0]["role"] != "system":
        return [turn("system", text), *messages]
    # The same text in both places is one that a tool has copied out of the messages.
    if messages[0].get("content") != text:
        where = f"`{column}` is a system text, and `{messages_key}`"
        raise RowRejectedError("two_systems", f"{where} begins with another; leave one out")
    return messages


def _system_text(row: Any, keys: Mapping[str, str]) -> tuple[str, str]:
    """The name of the column whose text opens a row's conversation, and that text: ("system", "Be brief."). Both are ""
    if the row has none.

    Raises:
        RowRejectedError: `two_systems`, if two columns have texts that differ.
    """
    texts: dict[str, str] = {}
    for field, column in keys.items():
        if field in SYSTEM and getattr(row, field):
            texts[column] = getattr(row, field)
    if len(set(texts.values())) > 1:
        names = " and ".join(f"`{column}`" for column in texts)
        raise RowRejectedError("two_systems", f"{names} are system texts that differ; leave one out")
    return next(iter(texts.items()), ("", ""))


def require_no_parts_of_a_chat(row: Any, keys: Mapping[str, str]) -> None:
    """Refuse what only a conversation can have, beside texts that are joined as they are.

    Args:
        row: a decoded row, whose attributes are fields of the format.
        keys: field → the name of its column.

    Raises:
        RowRejectedError: `unusable_column`.
    """
    for field in (*SYSTEM, "tools", *TEMPLATE_INPUTS):
        if field in keys and getattr(row, field):
            detail = "only a conversation can have it; `style: chat` makes turns of the texts"
            raise RowRejectedError("unusable_column", f"`{keys[field]}` stands beside plain texts: {detail}")


def turn(role: str, text: str) -> Message:
    """A message whose content is a text."""
    return {"role": role, "content": text}


def is_blank(value: Any) -> bool:
    """Whether a value is empty, or a text of white space only."""
    return not value or (isinstance(value, str) and value.isspace())


def is_silent(message: Message) -> bool:
    """Whether a message has no content but white space, no tool call and no reasoning."""
    return all(is_blank(message.get(key)) for key in ("content", *REPLACES_CONTENT))


def require_answer(messages: Messages, key: str) -> None:
    """Refuse messages of which the last is the assistant's and says nothing.

    Raises:
        RowRejectedError: `empty_completion`.
    """
    if messages and messages[-1]["role"] == "assistant" and is_silent(messages[-1]):
        raise RowRejectedError("empty_completion", f"`{key}[{len(messages) - 1}]`, the last answer, is empty")
