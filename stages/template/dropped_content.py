"""Finds, in every row, contents of the conversation that its rendered text lacks, by the words that the rendering
followed.

Contents, tool calls and tools without words in the text are lost. Such a row is refused unless the configuration allows
the loss. Reasoning may always be lost, because many templates drop it from earlier turns. The ledger counts all losses.
"""

import json
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from ...schemas.errors import PacktrainError, RowRejectedError, StoppedTemplateError
from ...schemas.rows import Message, Messages
from .assistant_turns import CALL, MESSAGE, REASONING, TOOLS, Word, code_of, part_of
from .chat_template import REASONING_KEYS, ChatTemplate
from .tracking.marks import CALL_KEYS, PART_KEYS, TOOL_KEYS, is_reasoning_part

LOST = "lost_content"
"""The ledger's reason for rows with lost content."""
DROPPED_REASONING = "reasoning"
"""The ledger's name for lost reasoning."""
THOUGHT_END = "</think>"
"""Tags that end a thought inside a content."""
_THOUGHT_BEGIN = "<think>"
ALLOWED_AS = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool_results",
}
"""Maps a role to the word of `tokenizer.allow_lost` for its contents."""
_TEXTS = frozenset({"text", "input_text", "output_text"})
_MORE_KEYS = frozenset({"tool_calls", "function_call", *REASONING_KEYS})
_LETTER = re.compile(r"<[^<>]*>|\w")
_MARKS = range(0xE000, 0xF900)
"""Private-use characters that replace letters which could not be followed into the text."""
_NAMED_TOOLS = 5


class TemplateCapabilities:
    """Knows what the template writes, and finds the parts of a row that it leaves out.

    Args:
        template: the chat template.
        allowed: what may be lost, in the words of `tokenizer.allow_lost`.
    """

    def __init__(self, template: ChatTemplate, allowed: Collection[str] = ()) -> None:
        self._template = template
        self.allowed = frozenset(allowed)
        self._parts: bool | None = None
        self._looked: tuple[Any, dict[int, bool]] = ((), {})
        self._prints = False  # whether lists are written as Python or JSON prints them

    def joined(self, messages: Messages, first: int = 0) -> Messages:
        """Return the messages; if the template cannot write lists of parts, they are joined to texts.

        Parts with a `train` flag are spans of one text, and joined as they are; others stand on lines of their own, as
        servers join them.

        Args:
            first: index of the first message in its conversation, for errors.

        Raises:
            RowRejectedError: `lost_content`, for a part that is not text, if the template cannot write lists.
        """
        out: dict[int, Message] = {}
        for index, message in enumerate(messages):
            content = message.get("content")
            if type(content) is not list:
                continue
            spans = any(isinstance(part, dict) and part.get("train") is not None for part in content)
            if not self._takes_parts() or (spans and self._prints):
                said = _joined(content, first + index, self._template.name, "" if spans else "\n")
                out[index] = {**message, "content": said}
        return [out.get(index, message) for index, message in enumerate(messages)] if out else messages

    def check(
        self,
        messages: Messages,
        tools: list[dict[str, Any]] | None,
        text: str,
        words: Sequence[Word],
        tool_words: Collection[int],
    ) -> tuple[str, ...]:
        """The allowed losses of a row: "reasoning", and words of `tokenizer.allow_lost`.

        Args:
            text: the rendered conversation.
            words: of the text; empty if the rendering could not be followed.
            tool_words: codes of the tools with words in the text.

        Raises:
            RowRejectedError: `lost_content`, if anything else is left out.
        """
        written = {
            code
            for begin, end, code in words
            if end > begin and not (text[begin].isspace() and text[begin:end].isspace())
        }
        dropped: set[str] = set()
        missing: list[int] = []
        for index, message in enumerate(messages):
            content = message.get("content")
            if type(content) is str:
                code = index << MESSAGE
                if THOUGHT_END in content:
                    said = [text[begin:end] for begin, end, owner in words if owner == code] if words else [text]
                    if drops_thought(content, said):
                        dropped.add(DROPPED_REASONING)
                        content = content.rpartition(THOUGHT_END)[2]
                if code not in written and content and not content.isspace():
                    missing.append(code)
            if type(content) is not list and (
                (len(message) == 2 and "role" in message) or _MORE_KEYS.isdisjoint(message)
            ):
                continue
            for code in _more_than_text(message, index):
                if code in written or (part_of(code) and code_of(index, 0, code & CALL) in written):
                    continue
                if code & REASONING and words:
                    dropped.add(DROPPED_REASONING)
                else:
                    missing.append(code)
        if tools and TOOLS not in tool_words:
            missing += [code for code in range(TOOLS - 1, TOOLS - 1 - len(tools), -1) if code not in tool_words]
        if missing:
            dropped |= self._sorted_out(missing, messages, tools, text)
        return tuple(sorted(dropped)) if dropped else ()

    def writes(self, messages: Messages, tools: list[dict[str, Any]] | None, text: str, index: int, kind: int) -> bool:
        """Whether the text has thoughts or tool calls of message `index` that no words of the text show.

        Args:
            text: the rendered conversation.
            kind: REASONING or CALL.
        """
        codes = [code for code in _more_than_text(messages[index], index) if code & kind]
        return not all(self._unseen(messages, tools, text, code) for code in codes)

    def _unseen(self, messages: Messages, tools: list[dict[str, Any]] | None, text: str, code: int) -> bool:
        """As `_is_unseen`; a row that is refused is looked at up to three times, by each way to render it."""
        row = (text, messages, tools)
        if self._looked[0] != row:
            self._looked = row, {}
        known = self._looked[1]
        if code not in known:
            known[code] = self._is_unseen(messages, tools, text, code)
        return known[code]

    def _is_unseen(self, messages: Messages, tools: list[dict[str, Any]] | None, text: str, code: int) -> bool:
        """Whether the template really leaves out the words of a code.

        Words may be in the text although they could not be followed (through `%`, for example). So the row is rendered
        again with their letters replaced by a character that is not in the text. If that character is then in the text,
        the words are written.
        """
        mark = next(chr(one) for one in _MARKS if chr(one) not in text)
        altered = [_altered(message, index, code, mark) for index, message in enumerate(messages)]
        own_tools = tools and [
            _with_mark(tool, mark, TOOL_KEYS) if code == TOOLS - 1 - k else tool for k, tool in enumerate(tools)
        ]
        try:
            found = self._template.render(altered, own_tools)
        except StoppedTemplateError:
            raise
        except PacktrainError:
            return True  # no evidence that they are written
        rest = found.replace(json.dumps(mark)[1:-1], "").replace(mark, "")
        return rest == found or len(rest) > len(text)

    def _sorted_out(
        self, missing: Sequence[int], messages: Messages, tools: list[dict[str, Any]] | None, text: str
    ) -> set[str]:
        """The allowed losses among `missing`; raise for the others.

        Of each kind that is not allowed, the first loss decides, because each is looked for with a rendering.
        """
        dropped: set[str] = set()
        refused: dict[str | None, tuple[str, str]] = {}
        lost_tools: list[int] = []
        for code in missing:
            if code <= TOOLS:
                if self._unseen(messages, tools, text, code):
                    lost_tools.append(TOOLS - 1 - code)
                continue
            index, part = code >> MESSAGE, part_of(code)
            role = messages[index].get("role")
            if code & REASONING:
                kind: str | None = DROPPED_REASONING
            else:
                kind = "tool_calls" if code & CALL else ALLOWED_AS.get(str(role))
            if kind in refused or kind in dropped or not self._unseen(messages, tools, text, code):
                continue
            if kind == DROPPED_REASONING or kind in self.allowed:
                dropped.add(str(kind))
                continue
            what = f"what this {role!r} message says"
            if code & CALL:
                what = "its tool calls" if len(messages[index].get("tool_calls") or ()) < 2 else f"its tool call {part}"
            elif part:
                what = f"part {part} of its content"
            refused[kind] = f"message {index + 1}: ", what
        if lost_tools and "tools" in self.allowed:
            dropped.add("tools")
        elif lost_tools:
            names = [_tool_name((tools or [])[k]) for k in lost_tools]
            more = f" and {len(names) - _NAMED_TOOLS:,} more" if len(names) > _NAMED_TOOLS else ""
            refused["tools"] = "", f"the tools {', '.join(names[:_NAMED_TOOLS])}{more}"
        if refused:
            raise self._rejected(refused)
        return dropped

    def _rejected(self, refused: dict[str | None, tuple[str, str]]) -> RowRejectedError:
        """The error for losses, by kind; names the first, and allows all."""
        where, what = next(iter(refused.values()))
        # With those that are allowed already, because this replaces them.
        other = f"allow it with tokenizer.allow_lost: [{', '.join(sorted({*map(str, refused), *self.allowed}))}]"
        if None in refused:
            where, what = refused[None]
            other = f"correct the role: common ones are {', '.join(ALLOWED_AS)}"
        name = self._template.name
        return RowRejectedError(
            LOST if None not in refused else "unknown_role",
            f"{where}the chat template '{name}' does not write {what}; take a template that does, or {other}",
        )

    def _takes_parts(self) -> bool:
        """Whether the template writes contents that are lists; tested once."""
        if self._parts is None:
            try:
                texts = {
                    self._template.render([{"role": "user", "content": [{"type": "text", "text": said}]}])
                    for said in ("aa", "bb")
                }
                self._parts = len(texts) > 1
                self._prints = any("'text'" in text or '"text"' in text for text in texts)
            except StoppedTemplateError:
                raise
            except PacktrainError:
                self._parts = False
        return self._parts


def drops_thought(content: str, written: Sequence[str]) -> bool:
    """Whether a content has a thought (`<think>…</think>`) that none of its written texts contains."""
    thought = content.rpartition(THOUGHT_END)[0].rpartition(_THOUGHT_BEGIN)[2].strip()
    return bool(thought) and not any(thought in text for text in written)


def _more_than_text(message: Message, index: int) -> Iterator[int]:
    """Codes of what a message contains besides a plain-text content."""
    content = message.get("content")
    if type(content) is list:
        for number, part in enumerate(content, 1):
            said = [part] if isinstance(part, str) else [part.get(key) for key in PART_KEYS]
            if any(_says(text) for text in said):
                yield code_of(index, number, REASONING if is_reasoning_part(part) else 0)
    if any(_says(message.get(key)) for key in REASONING_KEYS):
        yield code_of(index, 0, REASONING)
    for number, call in enumerate(_calls_of(message), 1):
        if call:
            yield code_of(index, number, CALL)


def _says(text: Any) -> bool:
    return isinstance(text, str) and bool(text) and not text.isspace()


def _calls_of(message: Message) -> list[Any]:
    calls = message.get("tool_calls") or message.get("function_call")
    return calls if isinstance(calls, list) else [calls]


def _altered(message: Message, index: int, code: int, mark: str) -> Message:
    """A copy of a message with the words of this code replaced by `mark`; the message itself if the code belongs to
    another message.
    """
    if code < 0 or code >> MESSAGE != index:
        return message
    out = dict(message)
    part = part_of(code)
    if code & CALL:
        for key in ("tool_calls", "function_call"):
            if out.get(key):
                calls = list(_calls_of(message))
                calls[part - 1] = _with_mark(calls[part - 1], mark, CALL_KEYS)
                out[key] = calls if isinstance(out[key], list) else calls[0]
    elif part:
        parts = list(out["content"])
        parts[part - 1] = _with_mark(parts[part - 1], mark, PART_KEYS, inside=isinstance(parts[part - 1], str))
        out["content"] = parts
    else:
        for key in REASONING_KEYS if code & REASONING else ("content",):
            if key in out:
                out[key] = _with_mark(out[key], mark, PART_KEYS, inside=True)
    return out


def _with_mark(value: Any, mark: str, keys: Collection[str], *, inside: bool = False) -> Any:
    """A copy of a value with the letters of all texts under `keys` replaced by `mark`, except tags such as
    `<think>`."""
    if isinstance(value, str) and inside:
        made = _LETTER.sub(lambda found: found[0] if found[0][0] == "<" else mark, value)
        return made if mark in made else made + mark
    if isinstance(value, list):
        return [_with_mark(item, mark, keys, inside=inside) for item in value]
    if isinstance(value, dict):
        return {key: _with_mark(item, mark, keys, inside=inside or key in keys) for key, item in value.items()}
    return value


def _tool_name(tool: Any) -> str:
    inner = tool.get("function") if isinstance(tool.get("function"), dict) else tool
    return str(inner.get("name", "without a name"))


def _joined(parts: list[Any], index: int, name: str, between: str) -> str:
    """Return the texts of all parts, joined for templates that cannot write lists."""
    texts = []
    for part in parts:
        text = part if isinstance(part, str) else None
        if isinstance(part, dict) and part.get("type", "text") in _TEXTS:
            text = part.get("text")
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise RowRejectedError(
                LOST,
                f"message {index + 1} has a part of type {kind!r}, and the chat template '{name}' does not write "
                "contents that are lists",
            )
        texts.append(text)
    return between.join(texts)
