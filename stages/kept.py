"""What a template would leave out of the text without a word: joined where that helps, else refused by name."""

from typing import Any

from ..schemas.errors import PacktrainError, RowRejectedError
from ..schemas.rows import Message, Messages
from .template import ChatTemplate

LOST = "lost_content"
"""The word that the ledger counts such rows by."""
_TEXTS = frozenset({"text", "input_text", "output_text"})
_MAX_ROLES = 256


class Keeper:
    """Asks a template once for every role, and once for contents that are lists of parts, whether it writes them.

    Args:
        template: asked with conversations of two or three messages.
    """

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._roles: dict[tuple[str, bool], bool] = {}
        self._parts: bool | None = None
        self._calls: bool | None = None

    def __call__(self, messages: Messages, first: int = 0) -> Messages:
        """The messages, lists of parts made into texts for a template that writes nothing of lists.

        Args:
            first: number of the first one in its conversation, from 0; for what is said of it.

        Raises:
            RowRejectedError: `lost_content`, where the template writes nothing of a message's role although it says
                something, of its tool calls, or of a part that is no text.
        """
        joined: dict[int, Message] = {}
        for index, message in enumerate(messages):
            content = message.get("content")
            if message.get("tool_calls") and not self._keeps_calls():
                raise RowRejectedError(
                    LOST,
                    f"message {first + index + 1}: the chat template '{self._template.name}' writes nothing of tool "
                    "calls; take a template that knows them",
                )
            if type(content) is list:
                if not self._takes_parts():
                    content = _joined(content, first + index, self._template.name)
                    joined[index] = {**message, "content": content}
            elif type(content) is not str:
                continue
            role = message.get("role")
            if type(role) is str and content and not self._keeps(role, first + index == 0):
                raise RowRejectedError(
                    LOST,
                    f"message {first + index + 1}: the chat template '{self._template.name}' writes nothing of a "
                    f"message whose role is {role!r}; rename the role, or take a template that knows it",
                )
        return [joined.get(index, message) for index, message in enumerate(messages)] if joined else messages

    def _keeps(self, role: str, leads: bool) -> bool:
        key = (role, leads)
        kept = self._roles.get(key)
        if kept is None:
            kept = self._asked(role, leads)
            if len(self._roles) < _MAX_ROLES:
                self._roles[key] = kept
        return kept

    def _asked(self, role: str, leads: bool) -> bool:
        """Whether what a message of this role says makes a difference, as the first message or as a later one."""
        user, answer = {"role": "user", "content": "u"}, {"role": "assistant", "content": "v"}
        places: list[tuple[Messages, Messages]] = [([user], []), ([user, answer], []), ([user], [answer])]
        asked = False
        for before, after in [([], [user]), ([], [answer]), ([], [])] if leads else places:
            texts = []
            for said in ("aa", "bb"):
                try:
                    texts.append(self._template.render([*before, {"role": role, "content": said}, *after]))
                except PacktrainError:
                    break  # not in this place; or never, which a row will hear from the template itself
            if len(texts) == 2:
                asked = True
                if texts[0] != texts[1]:
                    return True
        return not asked

    def _keeps_calls(self) -> bool:
        if self._calls is None:
            asked = kept = False
            for content in (None, "", "v"):
                for arguments in ({"a": 1}, '{"a": 1}'):
                    both = [self._calling(content, name, arguments) for name in ("aa", "bb")]
                    texts = [text for text in both if text is not None]
                    asked |= len(texts) == 2
                    kept |= len(set(texts)) == 2
            # One that takes no such conversation will say so itself.
            self._calls = kept or not asked
        return self._calls

    def _calling(self, content: str | None, name: str, arguments: Any) -> str | None:
        """A text with a tool call, or None where the template refuses it."""
        call = {"type": "function", "id": "call00000", "function": {"name": name, "arguments": arguments}}
        said: Message = {"role": "assistant", "content": content, "tool_calls": [call]}
        try:
            return self._template.render([{"role": "user", "content": "u"}, said])
        except PacktrainError:
            return None

    def _takes_parts(self) -> bool:
        if self._parts is None:
            try:
                texts = {
                    self._template.render([{"role": "user", "content": [{"type": "text", "text": said}]}])
                    for said in ("aa", "bb")
                }
                self._parts = len(texts) > 1
            except PacktrainError:
                self._parts = False
        return self._parts


def _joined(parts: list[Any], index: int, name: str) -> str:
    """The texts of all parts, a line each, as servers make of them for such templates."""
    texts = []
    for part in parts:
        text = part if isinstance(part, str) else None
        if isinstance(part, dict) and part.get("type", "text") in _TEXTS:
            text = part.get("text")
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise RowRejectedError(
                LOST,
                f"message {index + 1} has a part of type {kind!r}, and the chat template '{name}' writes nothing of "
                "contents that are lists",
            )
        texts.append(text)
    return "\n".join(texts)
