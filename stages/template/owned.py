"""Says what each string of a row is before its template sees it: whose content, thought or tool call.

Thoughts and tool calls have codes of their own, so that they are found again wherever the template writes them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ...schemas.rows import Message, Messages
from .assistant_turns import ASSISTANT
from .chat_template import REASONING_KEYS, plain, with_reasoning
from .thoughts import IN_BOTH, bare, has_more_thoughts, is_blank, thought_end
from .tracked_str import CALL, MESSAGE, REASONING, TAGGED, TrackedStr, code_of, owned, owner_of, tracked

LOST = "lost_content"
"""The ledger's reason for rows with lost content."""
_REASONING = frozenset(REASONING_KEYS)
_CALL_KEYS = ("name", "arguments", "parameters", "input")
"""Keys that hold the words of a tool call."""


class Owned:
    """The messages of a row as the template sees them, and what the text must show of them.

    Attributes:
        chat: with tracked contents.
        roles: one per message.
        flags: how much each message counts in the loss; see `loss_weight`.
        said: by code, what is more than white space: texts of contents without their thoughts, of thoughts, and whole
            tool calls.
        tangled: the last message whose content has more thoughts than one at its beginning; -1 if there is none.
    """

    def __init__(self) -> None:
        self.tangled = -1
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


def own(messages: Messages) -> Owned:
    """Messages as the template sees them, with tracked contents, reasoning and tool calls."""
    made = Owned()
    for index, message in enumerate(messages):
        role, code = message.get("role"), index << MESSAGE
        seen: Message = {}
        for key, value in message.items():
            if value is None:
                continue
            if type(value) is str and type(key) is str:
                if key == "content":
                    seen[key] = _content(made, value, code, role)
                elif key in _REASONING:
                    thought = code_of(index, 0, REASONING)
                    seen[key] = owned(value, thought)
                    if thought not in made.said:
                        made.say(thought, value)
                else:
                    seen[key] = value
            elif key == "tool_calls" and type(value) is list:
                calls = [(code_of(index, number, CALL), call) for number, call in enumerate(value, 1)]
                seen[key] = [_call(call, own_code) for own_code, call in calls]
                made.said.update((own_code, call) for own_code, call in calls if call)
            else:
                seen[plain(key)] = plain(value)
        made.chat.append(seen if _REASONING.isdisjoint(seen) else with_reasoning(seen))
        made.roles.append(role)
        made.flags.append(loss_weight(message))
    return made


def _content(made: Owned, text: str, code: int, role: Any) -> TrackedStr:
    """A content; the thought with which one of the assistant begins has a code of its own.

    Args:
        code: of the content.
    """
    tangled = role == ASSISTANT and IN_BOTH in text and has_more_thoughts(text)
    if tangled:
        made.tangled = code >> MESSAGE
    if tangled or role != ASSISTANT or IN_BOTH not in text:
        made.say(code, text)
        return owned(text, code)
    end = thought_end(text)
    made.say(code | TAGGED, text[:end])
    if bare(text[end:]):
        made.say(code, text[end:])
    if not end:
        return owned(text, code)
    words = ((0, end, code | TAGGED), (end, len(text), code))
    return tracked(text, words if end < len(text) else words[:1])


def loss_weight(message: Mapping[str, Any]) -> float:
    """How much a message counts in the loss: False (not at all) if it says `train: false` or has a `weight` of 0, its
    `weight` if that is another number than 1, else True.
    """
    weight = message.get("weight")
    if message.get("train") is False or weight == 0:
        return False
    return True if weight is None or weight == 1 else float(weight)


def texts_of(said: Any) -> list[str]:
    """The texts of an entry of `Owned.said` that are more than white space; of a tool call, those of its name and
    arguments.
    """
    return [said] if isinstance(said, str) else list(_texts_under(said))


def _texts_under(value: Any, *, inside: bool = False) -> Iterator[str]:
    if isinstance(value, str):
        if inside and not is_blank(value):
            yield value
    elif isinstance(value, list | dict):
        for key, item in value.items() if isinstance(value, dict) else ((None, one) for one in value):
            yield from _texts_under(item, inside=inside or key in _CALL_KEYS)


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
