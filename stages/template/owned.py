"""Says what each string of a row is before its template sees it: whose content, thought or tool call.

Thoughts and tool calls have codes of their own, so that they are found again wherever the template writes them.
"""

from collections.abc import Collection, Mapping
from typing import Any

from ...schemas.errors import PacktrainError, RowRejectedError, StoppedTemplateError
from ...schemas.rows import Message, Messages
from .assistant_turns import ASSISTANT
from .chat_template import REASONING_KEYS, ChatTemplate, plain, with_reasoning
from .thoughts import IN_BOTH, bare, is_blank, thoughts_in
from .tracked_str import CALL, MESSAGE, REASONING, TAGGED, TrackedStr, code_of, owned, owner_of, part_of, tracked

LOST = "lost_content"
"""The ledger's reason for rows with lost content."""
_WORDS_KEYS = ("content", *REASONING_KEYS)
_REASONING = frozenset(REASONING_KEYS)
_PART_KEYS = ("text", "refusal", *_WORDS_KEYS)
"""Keys that hold the words of a content part."""
_TEXTS = frozenset({"text", "input_text", "output_text"})
"""Types of parts that can be joined to one text."""
_CALL_KEYS = ("name", "arguments", "parameters", "input")
"""Keys that hold the words of a tool call."""
_REASONING_TYPES = ("thinking", "reasoning")


class Owned:
    """The messages of a row as the template sees them, and what the text must show of them.

    Attributes:
        chat: with tracked contents.
        roles: one per message.
        flags: how much each message counts in the loss; see `loss_weight`.
        said: by code, what is more than white space: texts of contents without their thoughts, of thoughts, and whole
            tool calls.
    """

    def __init__(self) -> None:
        self.chat: Messages = []
        self.roles: list[Any] = []
        self.flags: list[float] = []
        self.said: dict[int, Any] = {}

    def say(self, code: int, text: str) -> None:
        """Note a text."""
        if text and not text.isspace():
            self.said[code] = f"{self.said[code]}\n{text}" if code in self.said else text


class OwnedDict(dict[Any, Any]):
    """A tool call, its function or its arguments: a dictionary that remembers its message."""

    __slots__ = ("_code",)  # hidden from templates by the sandbox

    def __init__(self, code: int) -> None:
        self._code = code


def origin_of(value: Any) -> int | None:
    """The code of a value that came from one place; for several tool calls of a message, their common code."""
    if type(value) is OwnedDict:
        return value._code
    if type(value) is not list or not value or type(value[0]) is not OwnedDict:
        return owner_of(value)
    code = value[0]._code
    if all(type(item) is OwnedDict and item._code == code for item in value):
        return code
    return code_of(code >> MESSAGE, 0, CALL)


class Owner:
    """Gives every string of a row its code.

    Args:
        template: the chat template.
    """

    def __init__(self, template: ChatTemplate) -> None:
        self.template = template
        self._takes_lists: bool | None = None

    def own(self, messages: Messages) -> Owned:
        """Messages as the template sees them, with tracked contents.

        Raises:
            RowRejectedError: there is no message, or one is not a JSON object; `lost_content` for a part of a content
                that is not text, if the template cannot write lists.
        """
        if not messages:
            raise self.template.rejected("there is no message to render")
        own = Owned()
        for index, message in enumerate(messages):
            if (
                type(message) is dict
                and len(message) == 2
                and type(content := message.get("content")) is str
                and type(role := message.get("role")) is str
            ):  # as most are
                made = message.copy()
                if role == ASSISTANT:
                    made["content"] = self._content(own, content, index << MESSAGE, role)
                else:
                    made["content"] = owned(content, index << MESSAGE)
                    own.say(index << MESSAGE, content)
                own.chat.append(made)
                own.roles.append(role)
                own.flags.append(True)
            else:
                self._own(own, message, index)
        return own

    def plain(self, messages: Messages) -> Messages:
        """Messages as the template sees them, without tracking: contents that are lists are joined to texts if it
        cannot write lists.

        Raises:
            RowRejectedError: see `own`.
        """
        return [self._bare(message, index) for index, message in enumerate(messages)]

    def _own(self, own: Owned, message: Any, index: int) -> None:
        """Add a message of any form."""
        if not isinstance(message, Mapping):
            raise self.template.rejected(f"a message must be a JSON object, not {type(message).__name__}")
        role, message = message.get("role"), self._bare(message, index)
        made: Message = {}
        for key, value in message.items():
            if value is None:
                continue
            if type(value) is str and type(key) is str:
                if key == "content":
                    made[key] = self._content(own, value, index << MESSAGE, role)
                elif key in _REASONING:
                    code = code_of(index, 0, REASONING)
                    made[key] = owned(value, code)
                    if code not in own.said:
                        own.say(code, value)
                else:
                    made[key] = value
            elif key in _WORDS_KEYS:
                kind = 0 if key == "content" else REASONING
                items = plain(value)
                made[key] = (
                    [self._part(own, item, index, number, kind, role) for number, item in enumerate(items, 1)]
                    if type(items) is list
                    else self._part(own, items, index, 0, kind, role)
                )
            elif key == "tool_calls" and type(value) is list:
                calls = [(code_of(index, number, CALL), call) for number, call in enumerate(value, 1)]
                made[key] = [_call(call, code) for code, call in calls]
                own.said.update((code, call) for code, call in calls if call)
            else:
                made[plain(key)] = plain(value)
        own.chat.append(made if _REASONING.isdisjoint(made) else with_reasoning(made))
        own.roles.append(role)
        own.flags.append(loss_weight(message))

    def _content(self, own: Owned, text: str, code: int, role: Any) -> TrackedStr:
        """A content, or a part of one; the assistant's thoughts between tags have codes of their own.

        Args:
            code: of the content.
        """
        found = list(thoughts_in(text)) if role == ASSISTANT and IN_BOTH in text else []
        if not found:
            own.say(code, text)
            return owned(text, code)
        words, done = [], 0
        for number, (begin, end) in enumerate(found, 1):
            if begin > done:
                words.append((done, begin, code))
            words.append((begin, end, code | code_of(0, 0 if part_of(code) else number, TAGGED)))
            done = end
        if done < len(text):
            words.append((done, len(text), code))
        for low, high, word in words:
            if word & TAGGED or bare(text[low:high]):
                own.say(word, text[low:high])
        return tracked(text, tuple(words))

    def _part(self, own: Owned, value: Any, index: int, number: int, kind: int, role: Any) -> Any:
        """A part of a content, with tracked texts."""
        code = code_of(index, number, REASONING if _is_reasoning(value) else kind)
        if type(value) is str:
            return self._content(own, value, code, None if code & REASONING else role)
        if type(value) is dict:
            return {
                key: self._content(own, item, code, None if code & REASONING else role)
                if key in _PART_KEYS and type(item) is str
                else item
                for key, item in value.items()
            }
        return value

    def _bare(self, message: Any, index: int) -> Message:
        """A message as the template sees it, without tracking. Parts that are joined stand on lines of their own, as
        servers join them.
        """
        parts = message.get("content") if isinstance(message, Mapping) else None
        if type(parts) is not list or self._writes_lists():
            return message  # type: ignore[no-any-return]
        return {**message, "content": "\n".join([self._text_of(part, index) for part in parts])}

    def _text_of(self, part: Any, index: int) -> str:
        """The text of a part that is to be joined with others."""
        text = part if isinstance(part, str) else None
        if isinstance(part, dict) and part.get("type", "text") in _TEXTS:
            text = part.get("text")
        if isinstance(text, str):
            return text
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        raise RowRejectedError(
            LOST,
            f"message {index + 1} has a part of type {kind!r}, and the chat template '{self.template.name}' does not "
            "write contents that are lists",
        )

    def _writes_lists(self) -> bool:
        """Whether the template writes contents that are lists; tested once."""
        if self._takes_lists is None:
            try:
                texts = {
                    self.template.render([{"role": "user", "content": [{"type": "text", "text": said}]}])
                    for said in ("aa", "bb")
                }
                self._takes_lists = len(texts) > 1
            except StoppedTemplateError:
                raise
            except PacktrainError:
                self._takes_lists = False
        return self._takes_lists


def loss_weight(message: Mapping[str, Any]) -> float:
    """How much a message counts in the loss: False (not at all) if it says `train: false` or has a `weight` of 0, its
    `weight` if that is another number than 1, else True.
    """
    weight = message.get("weight")
    if message.get("train") is False or weight == 0:
        return False
    return True if weight is None or weight == 1 else float(weight)


def texts_of(said: Any) -> list[str]:
    """The texts of an entry of `Owned.said`, without white space around them."""
    return [said.strip()] if isinstance(said, str) else list(texts_under(said, _CALL_KEYS))


def texts_under(value: Any, keys: Collection[str], *, inside: bool = False) -> list[str]:
    """The texts under some keys that are more than white space, without such space around them."""
    if isinstance(value, str):
        return [value.strip()] if inside and not is_blank(value) else []
    if isinstance(value, list):
        return [text for item in value for text in texts_under(item, keys, inside=inside)]
    if isinstance(value, dict):
        items = value.items()
        return [text for key, item in items for text in texts_under(item, keys, inside=inside or key in keys)]
    return []


def _is_reasoning(part: Any) -> bool:
    """Whether a part of a content is reasoning."""
    return type(part) is dict and part.get("type") in _REASONING_TYPES


def _call(value: Any, code: int) -> Any:
    """A tool call with tracked name and arguments."""
    if type(value) is not dict:
        return plain(value)
    made = OwnedDict(code)
    for key, item in value.items():
        if key == "function":
            made[key] = _call(item, code)
        elif key in _CALL_KEYS:
            made[key] = _all(item, code)
        else:
            made[plain(key)] = plain(item)
    return made


def _all(value: Any, code: int) -> Any:
    if type(value) is str:
        return owned(value, code)
    if type(value) is list:
        return [_all(item, code) for item in value]
    if type(value) is dict:
        made = OwnedDict(code)
        for key, item in value.items():
            own = owned(item, code) if type(item) is str else _all(item, code)
            made[owned(key, code) if type(key) is str else _all(key, code)] = own
        return made
    return plain(value)
