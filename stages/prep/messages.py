"""Conversations under `messages`, one example per row or per turn of the assistant; and what all conversational formats
share.

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
from .base import Column, Columns, Format, is_truth
from .message_checks import REPLACES_CONTENT, check_messages
from .rowjson import decode_json
from .template_inputs import DOCUMENTS, KWARGS

OBJECTS = "a JSON list of objects"
TOOLS = Column(list[dict[str, Any]] | None, nested=True, cell=OBJECTS)
"""The column of the tools; rows may lack it."""
MEDIA = {
    name: Column(Any, refused=("not_text", "only text can be packed; remove the column if the text needs none"))
    for name in ("image", "images", "audio", "audios", "video", "videos")
}
"""Columns that hold a conversation's images, sounds or videos."""
FUNCTIONS = {
    "functions": Column(Any, refused=("wrong_type", "it is not read; give `tools`, or keys: {tools: functions}"))
}
SYSTEM = {name: Column(str | None) for name in ("system", "system_prompt")}
"""The columns of a text that opens a conversation."""
_KTO = "true and false are for KTO, and are not pairs or examples here; take the good ones, or remove the column"
_TRAINED = "it is not read; give `train: false` to each message that is not trained"
TEMPLATE_INPUTS = {
    KWARGS: Column(dict[str, Any] | None, nested=True, cell="a JSON object"),
    DOCUMENTS: Column(list[dict[str, Any]] | None, nested=True, cell=OBJECTS),
}
"""The columns of variables and documents for the chat template."""
DECIDES_TRAINING = {
    **{name: Column(Any, refused=("unusable_column", _KTO), refuses=is_truth) for name in ("label", "kto_tag")},
    "loss_mask": Column(Any, refused=("unusable_column", _TRAINED)),
    "train": Column(Any, refused=("unusable_column", _TRAINED), refuses=lambda value: value is not True),
}
"""Columns with which other tools decide what of a row is trained, and which cannot be honoured."""


class MessagesFormat(Format):
    """Conversations. If the last message is the assistant's, it is the completion and all messages before it are the
    prompt. A format with a column `system` has there a text that opens the conversation.

    Messages keep every key and value as they were decoded, `content` parts and tool calls included.
    """

    name = "messages"
    columns: ClassVar[Columns] = {
        "messages": Column(list[dict[str, Any]], required=True, nested=True, cell=OBJECTS),
        "tools": TOOLS,
        **SYSTEM,
        **FUNCTIONS,
        **MEDIA,
        **TEMPLATE_INPUTS,
        **DECIDES_TRAINING,
    }
    other_names = ("messages", "conversations", "conversation")
    values = "a list of objects with `role`"
    has_one_list = True
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

    def message(self, source_turn: Message, where: str) -> Message:
        """A turn as a message with `role` and `content`.

        Args:
            where: names it in errors.
        """
        return source_turn

    def examples(self, row: Any, line: int, skipped: Counter[str]) -> list[Example]:
        """See `Format.examples`.

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
        messages = with_system(messages, system_of(row, self.keys), key)
        return conversation(messages, row.tools, line, per_turn=self.options.per_turn, skipped=skipped)


def _turns_have(key: str, value: Any) -> bool:
    """Whether a value is a conversation, or its JSON as in a cell of CSV, whose turns all have a key."""
    if isinstance(value, str):
        try:
            value = decode_json(value, "") if value.lstrip().startswith("[") else None
        except RowRejectedError:
            return False
    if not isinstance(value, list) or not value or not all(isinstance(item, Mapping) for item in value):
        return False
    # Turns with both keys are ShareGPT's.
    return key == next((name for name in ("from", "role") if all(name in item for item in value)), None)


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
    conversation_example = Example(line, -1, "", messages[:cut], messages[cut:], None, tools)
    if not per_turn:
        return [conversation_example]
    turns = [i for i in range(start or 0, len(messages)) if messages[i]["role"] == "assistant"]
    supervised = [i for i in turns if messages[i].get("train") is not False]
    trained = [i for i in supervised if not is_silent(messages[i])]
    if not trained:
        return [conversation_example]
    # The plus sign drops counts of 0.
    skipped.update(+Counter(not_trained=len(turns) - len(supervised), empty_completion=len(supervised) - len(trained)))
    group = short_hash(msgspec.json.encode([messages, tools]), 8)
    return [
        conversation_example._replace(sub=sub, group=group, prompt=messages[:i], completion=[messages[i]])
        for sub, i in enumerate(trained)
    ]


def system_of(row: Any, keys: Mapping[str, str]) -> tuple[str, str]:
    """The text that opens a row's conversation, "" if there is none, and the name of its column.

    Raises:
        RowRejectedError: `two_systems`, if the row has two that differ.
    """
    texts = {name: text for field, name in keys.items() if field in SYSTEM and (text := getattr(row, field))}
    if len(set(texts.values())) > 1:
        names = " and ".join(f"`{name}`" for name in texts)
        raise RowRejectedError("two_systems", f"{names} are system texts that differ; leave one out")
    return next(((text, name) for name, text in texts.items()), ("", ""))


def with_system(messages: Messages, system: tuple[str, str], key: str) -> Messages:
    """(M,) messages, opened by a system text if there is one and they do not begin with it.

    Args:
        system: the text and its column; see `system_of`.
        key: the column of the messages.

    Raises:
        RowRejectedError: `two_systems`.
    """
    text, column = system
    if not text:
        return messages
    if not messages or messages[0]["role"] != "system":
        return [turn("system", text), *messages]
    if messages[0].get("content") != text:
        where = f"`{column}` is a system text, and `{key}`"
        raise RowRejectedError("two_systems", f"{where} begins with another; leave one out")
    return messages


def require_no_parts_of_a_chat(row: Any, keys: Mapping[str, str]) -> None:
    """Refuse what only a conversation can have, beside texts that are joined as they are.

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
    """Raise RowRejectedError `empty_completion` if the last message is the assistant's and says nothing."""
    if messages and messages[-1]["role"] == "assistant" and is_silent(messages[-1]):
        raise RowRejectedError("empty_completion", f"`{key}[{len(messages) - 1}]`, the last answer, is empty")
