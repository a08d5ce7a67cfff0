"""Finds, in every row, contents of the conversation that its rendered text lacks, by the words that the rendering
followed.

Contents, tool calls and tools without words in the text are lost. Such a row is refused unless the configuration allows
the loss. Reasoning may always be lost, because many templates drop it from earlier turns. The ledger counts all losses.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import Any

from ...schemas.errors import RowRejectedError
from .assistant_turns import ASSISTANT, UnprovedError
from .chat_template import ChatTemplate
from .marked import TOOL_KEYS, Marked
from .owned import LOST, Owned, texts_of, texts_under
from .thought_style import bare, is_blank
from .tracked_str import CALL, MESSAGE, REASONING, TAGGED, TOOLS, Word, code_of, part_of

DROPPED_REASONING = "reasoning"
"""The ledger's name for lost reasoning."""
ALLOWED_AS = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool_results",
}
"""Maps a role to the word of `tokenizer.allow_lost` for its contents."""
_JSON = json.JSONEncoder(ensure_ascii=False)
_NAMED_TOOLS = 5


class Losses:
    """Finds the parts of a row that the template leaves out, or that it does not write whole and in one place.

    Args:
        template: the chat template.
        allowed: what may be lost, in the words of `tokenizer.allow_lost`.
    """

    def __init__(self, template: ChatTemplate, allowed: Collection[str] = ()) -> None:
        self._template = template
        self.allowed = frozenset(allowed)

    def check(
        self, own: Owned, tools: list[dict[str, Any]] | None, made: Marked
    ) -> tuple[tuple[str, ...], UnprovedError | None]:
        """The allowed losses of a row ("reasoning", and words of `tokenizer.allow_lost`); and why the words of a turn
        are not found whole and in one place, if so.

        Words may be in the text although they could not be followed, through `%`, for example: they are not lost.

        Args:
            made: the rendered conversation.

        Raises:
            RowRejectedError: `lost_content`, if anything else is left out.
        """
        written, gaps = _pieces(made.text, made.words), Gaps(made.text, made.words)

        def hidden(texts: Sequence[str]) -> bool:
            return gaps.hold(texts) and not all(one in self._template.source for one in texts)

        dropped: set[str] = set()
        missing: list[int] = []
        torn: UnprovedError | None = None
        for code, said in own.said.items():
            index, pieces, of_thought = code >> MESSAGE, written.get(code), code & (REASONING | TAGGED)
            if pieces is None and of_thought:
                dropped |= set() if hidden([bare(said)]) else {DROPPED_REASONING}
            elif pieces is None:
                if not part_of(code) or code_of(index, 0, code & CALL) not in written:
                    missing.append(code)
            elif own.roles[index] == ASSISTANT and not code & CALL:
                left = _left(said, pieces)
                if left is None:
                    torn = torn or UnprovedError("the template writes its words more than once", index)
                elif left and not of_thought and hidden(left):
                    torn = torn or UnprovedError("the template changes a part of its words", index)
                elif left and not of_thought:
                    missing.append(code)
        lost: dict[str | None, tuple[str, str]] = {}  # the first of each kind: where it is and what, in words
        for code in missing:
            kind = "tool_calls" if code & CALL else ALLOWED_AS.get(str(own.roles[code >> MESSAGE]))
            if kind not in lost and (code in written or not hidden(texts_of(own.said[code]))):
                lost[kind] = _named(own, code, some=code in written)
        if tools and TOOLS not in made.tools:
            untold = [tool for k, tool in enumerate(tools) if TOOLS - 1 - k not in made.tools]
            names = [_tool_name(tool) for tool in untold if not hidden(texts_under(tool, TOOL_KEYS))]
            more = f" and {len(names) - _NAMED_TOOLS:,} more" if len(names) > _NAMED_TOOLS else ""
            if names:
                lost["tools"] = "", f"the tools {', '.join(names[:_NAMED_TOOLS])}{more}"
        dropped |= {str(kind) for kind in lost if kind in self.allowed}
        if refused := {kind: what for kind, what in lost.items() if kind not in self.allowed}:
            raise self._rejected(refused)
        return tuple(sorted(dropped)), torn

    def _rejected(self, refused: dict[str | None, tuple[str, str]]) -> RowRejectedError:
        """The error for losses, by kind; names the first, and allows all."""
        where, what = refused.get(None) or next(iter(refused.values()))
        # With those that are allowed already, because this replaces them.
        other = f"allow it with tokenizer.allow_lost: [{', '.join(sorted({*map(str, refused), *self.allowed}))}]"
        if None in refused:
            other = f"correct the role: common ones are {', '.join(ALLOWED_AS)}"
        return RowRejectedError(
            LOST if None not in refused else "unknown_role",
            f"{where}the chat template '{self._template.name}' does not write {what}; take a template that does, or "
            f"{other}",
        )


def _pieces(text: str, words: Sequence[Word]) -> Mapping[int, list[str]]:
    """The texts of the words of each code, without those of white space."""
    out: dict[int, list[str]] = {}
    for begin, end, code in words:
        if begin < end and not (text[begin].isspace() and text[begin:end].isspace()):
            out.setdefault(code, []).append(text[begin:end])
    return out


def _left(said: str, pieces: Sequence[str]) -> list[str] | None:
    """The lines of a text that are not among the pieces that are written of it; None if a piece is written more than
    once. If the template rewrites a piece (`upper`), nothing can be said: there are none.
    """
    if len(pieces) == 1 and len(pieces[0].strip()) >= len(said.strip()):
        return []
    rest, high = [], len(said)
    for piece in reversed(pieces):  # templates take the last part of what they split
        low = said.rfind(piece, 0, high)
        if low < 0:
            return None if piece in said or pieces.count(piece) > 1 else []
        rest.append(said[low + len(piece) : high])
        high = low
    rest.append(said[:high])
    return [line.strip() for one in reversed(rest) for line in bare(one).splitlines() if not is_blank(line)]


class Gaps:
    """What a rendered text has between the words that were followed.

    Args:
        words: sorted.
        begin, end: only this stretch of the text; by default all.
    """

    def __init__(self, text: str, words: Sequence[Word], begin: int = 0, end: int | None = None) -> None:
        self._of = text, words, begin, len(text) if end is None else end
        self._texts: list[str] | None = None

    def hold(self, texts: Sequence[str]) -> bool:
        """Whether texts, at least one, all stand in gaps: as they are, in JSON or as Python prints them."""
        return bool(texts) and all(self._holds(one.strip()) for one in texts)

    def _holds(self, text: str) -> bool:
        if self._texts is None:  # made when they are needed, which is rare
            whole, words, begin, end = self._of
            begins = accumulate((word[1] for word in words), max, initial=begin)
            ends = (*(word[0] for word in words), end)
            self._texts = [whole[low:high] for low, high in zip(begins, ends, strict=True) if low < high]
        ways = (text, _JSON.encode(text)[1:-1], json.dumps(text)[1:-1], repr(text)[1:-1])
        return any(way in gap for gap in self._texts for way in ways)


def _named(own: Owned, code: int, *, some: bool) -> tuple[str, str]:
    """Where a loss is and what, in words.

    Args:
        some: whether the text shows another part of it.
    """
    index, part = code >> MESSAGE, part_of(code)
    what = f"{'all of ' * some}what this {own.roles[index]!r} message says"
    if code & CALL:
        what = f"its tool call {part}" if code_of(index, 2, CALL) in own.said else "its tool calls"
    elif part:
        what = f"part {part} of its content"
    return f"message {index + 1}: ", what


def _tool_name(tool: Any) -> str:
    inner = tool.get("function") if isinstance(tool.get("function"), dict) else tool
    return str(inner.get("name", "without a name"))
