"""Finds, in every row, contents of the conversation that its rendered text lacks, by the words that the rendering
followed.

Contents, tool calls and tools without words in the text are lost. Such a row is refused unless the configuration allows
the loss. Reasoning may always be lost, because many templates drop it from earlier turns. The ledger counts all losses.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from ...schemas.errors import PacktrainError, RowRejectedError, StoppedTemplateError
from ...schemas.rows import Message, Messages
from .assistant_turns import ASSISTANT, CALL, MESSAGE, REASONING, TOOLS, UnprovedError, Word, code_of, part_of
from .chat_template import REASONING_KEYS, ChatTemplate
from .marked import CALL_KEYS, PART_KEYS, TOOL_KEYS, is_reasoning_part
from .thought_style import ThoughtStyle

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
_JSON = json.JSONEncoder(ensure_ascii=False)
_NAMED_TOOLS = 5


class Losses:
    """Knows what the template writes, and finds the parts of a row that it leaves out.

    Args:
        template: the chat template.
        allowed: what may be lost, in the words of `tokenizer.allow_lost`.
    """

    def __init__(self, template: ChatTemplate, allowed: Collection[str] = ()) -> None:
        self._template = template
        self.allowed = frozenset(allowed)
        self._parts: bool | None = None
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
        style: ThoughtStyle,
    ) -> tuple[str, ...]:
        """The allowed losses of a row: "reasoning", and words of `tokenizer.allow_lost`.

        Args:
            text: the rendered conversation.
            words: of the text, sorted.
            tool_words: codes of the tools with words in the text.
            style: how the template writes thoughts.

        Raises:
            RowRejectedError: `lost_content`, if anything else is left out.
        """
        written = _pieces(text, words)
        dropped: set[str] = set()
        missing: list[int] = []
        gaps: Gaps | None = None
        for index, message in enumerate(messages):
            content = message.get("content")
            if type(content) is str:
                code = index << MESSAGE
                answers = message.get("role") == ASSISTANT
                if answers and code in written and (rest := _left(content, written[code], style)):
                    gaps = gaps or Gaps.of(text, words)
                    if not self._writes(rest, gaps):
                        missing.append(code)
                if answers and THOUGHT_END in content and drops_thought(content, written.get(code, ())):
                    dropped.add(DROPPED_REASONING)
                    content = content.rpartition(THOUGHT_END)[2]
                if code not in written and content and not content.isspace() and not _has_parts(index, written):
                    missing.append(code)
            if type(content) is not list and (
                (len(message) == 2 and "role" in message) or _MORE_KEYS.isdisjoint(message)
            ):
                continue
            for code in _more_than_text(message, index):
                if code in written or (part_of(code) and code_of(index, 0, code & CALL) in written):
                    continue
                if code & REASONING:
                    dropped.add(DROPPED_REASONING)
                else:
                    missing.append(code)
        if tools and TOOLS not in tool_words:
            missing += [code for code in range(TOOLS - 1, TOOLS - 1 - len(tools), -1) if code not in tool_words]
        if missing:
            dropped |= self._sorted_out(missing, messages, tools, gaps or Gaps.of(text, words), written)
        return tuple(sorted(dropped)) if dropped else ()

    def require_whole(self, messages: Messages, text: str, words: Sequence[Word], style: ThoughtStyle) -> None:
        """Refuse turns whose contents are not found whole and in one place.

        Raises:
            UnprovedError: the template writes the words of a turn again elsewhere, or changes a part of them.
        """
        written = _pieces(text, words)
        for index, message in enumerate(messages):
            if message.get("role") != ASSISTANT:
                continue
            for key in ("content", *REASONING_KEYS):
                said = message.get(key)
                pieces = written.get(code_of(index, 0, 0 if key == "content" else REASONING))
                if not pieces or not isinstance(said, str):
                    continue
                left = _left(said, pieces, style)
                if left is None:
                    raise UnprovedError("the template writes its words more than once", index)
                if key == "content" and left and self._writes(left, Gaps.of(text, words)):
                    raise UnprovedError("the template changes a part of its words", index)

    def _sorted_out(
        self,
        missing: Sequence[int],
        messages: Messages,
        tools: list[dict[str, Any]] | None,
        gaps: "Gaps",
        written: Collection[int],
    ) -> set[str]:
        """The allowed losses among `missing`; raise for the others, naming the first of each kind.

        Words may be in the text although they could not be followed, through `%`, for example: they are not lost.
        """
        dropped: set[str] = set()
        refused: dict[str | None, tuple[str, str]] = {}
        lost_tools: list[int] = []
        for code in missing:
            if code <= TOOLS:
                tool = (tools or [])[TOOLS - 1 - code]
                if not self._writes(list(texts_under(tool, TOOL_KEYS)), gaps):
                    lost_tools.append(TOOLS - 1 - code)
                continue
            index, part = code >> MESSAGE, part_of(code)
            role = messages[index].get("role")
            kind = "tool_calls" if code & CALL else ALLOWED_AS.get(str(role))
            if kind in refused or kind in dropped:
                continue
            if code not in written and self._writes(_texts_of(messages[index], code), gaps):
                continue
            if kind in self.allowed:
                dropped.add(str(kind))
                continue
            what = f"{'all of ' * (code in written)}what this {role!r} message says"
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

    def _writes(self, texts: Sequence[str], gaps: "Gaps") -> bool:
        """Whether the template writes texts, though they could not be followed: they stand between words, and are not
        its own.
        """
        return gaps.hold(texts) and not all(one in self._template.source for one in texts)

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


def _pieces(text: str, words: Sequence[Word]) -> dict[int, list[str]]:
    """The texts of the words of each code, without those of white space."""
    out: dict[int, list[str]] = {}
    for begin, end, code in words:
        if begin < end and not (text[begin].isspace() and text[begin:end].isspace()):
            out.setdefault(code, []).append(text[begin:end])
    return out


def _has_parts(index: int, written: Collection[int]) -> bool:
    """Whether words of parts of a message's content are written; a joined content has only such words."""
    return any(code >> MESSAGE == index and not code & (CALL | REASONING) for code in written)


def _left(content: str, pieces: Sequence[str], style: ThoughtStyle) -> list[str] | None:
    """The lines of a content, without its thoughts, that are not among the pieces that are written of it; None if a
    piece is written more than once. If the template rewrites a piece (`upper`), nothing can be said: there are none.
    """
    if len(pieces) == 1 and len(pieces[0].strip()) >= len(content.strip()):
        return []
    rest: list[tuple[int, int]] = []
    high = len(content)
    for piece in reversed(pieces):  # templates take the last part of what they split
        low = content.rfind(piece, 0, high)
        if low < 0:
            return None if piece in content or pieces.count(piece) > 1 else []
        rest.append((low + len(piece), high))
        high = low
    rest.append((0, high))
    if not any(_says(content[low:high]) for low, high in rest):
        return []
    thoughts = list(style.thoughts(content, 0, len(content)))
    left = []
    for low, high in reversed(rest):
        plain = "".join(
            content[place] for place in range(low, high) if not any(begin <= place < end for begin, end in thoughts)
        )
        for tag in (tag for pair in style.tags for tag in pair):
            plain = plain.replace(tag, "")
        left += [line.strip() for line in plain.splitlines() if _says(line)]
    return left


def call_texts(message: Message) -> list[list[str]]:
    """The texts of each tool call of a message: its name and arguments."""
    return [list(texts_under(call, CALL_KEYS)) for call in _calls_of(message) if call]


def texts_under(value: Any, keys: Collection[str] = (), *, inside: bool = False) -> Iterator[str]:
    """Yield the texts under some keys that are more than white space, without such space around them."""
    if isinstance(value, str):
        if inside and _says(value):
            yield value.strip()
    elif isinstance(value, list):
        for item in value:
            yield from texts_under(item, keys, inside=inside)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from texts_under(item, keys, inside=inside or key in keys)


def _texts_of(message: Message, code: int) -> list[str]:
    """The texts of a message that belong to a code, which is not one of reasoning."""
    part = part_of(code)
    if code & CALL:
        return list(texts_under(_calls_of(message)[part - 1], CALL_KEYS))
    content = message["content"][part - 1] if part else message["content"]
    return list(texts_under(content, PART_KEYS, inside=isinstance(content, str)))


class Gaps:
    """What a rendered text has between the words that were followed.

    Args:
        texts: the stretches between words.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self._text = "\0".join(texts)

    @classmethod
    def of(cls, text: str, words: Sequence[Word]) -> "Gaps":
        """The gaps of a whole text, whose words are sorted."""
        begins = [0, *accumulate((end for _, end, _ in words), max)]
        ends = [*(begin for begin, _, _ in words), len(text)]
        return cls(text[low:high] for low, high in zip(begins, ends, strict=True))

    def hold(self, texts: Sequence[str]) -> bool:
        """Whether texts, at least one, all stand in gaps: as they are, in JSON or as Python prints them."""
        return bool(texts) and all(self._holds(one.strip()) for one in texts)

    def _holds(self, text: str) -> bool:
        ways = (text, _JSON.encode(text)[1:-1], json.dumps(text)[1:-1], repr(text)[1:-1])
        return any(way in self._text for way in ways)


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
