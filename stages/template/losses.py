"""Finds, in every row, contents of the conversation that its rendered text lacks, by the words that the rendering
followed.

Contents, tool calls and tools that are not in the text are lost. Such a row is refused unless the configuration allows
the loss. Reasoning may always be lost, because many templates drop it from earlier turns. The ledger counts all losses.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from itertools import accumulate
from typing import Any

from markupsafe import escape

from ...schemas.errors import RowRejectedError
from .chat import UnprovedError
from .chat_template import ChatTemplate
from .marked import ASSISTANT, CALL_KEYS, Marked, Owned, bare, is_blank
from .tracked_str import CALL, MESSAGE, REASONING, TAGGED, Word, code_of, part_of

LOST = "lost_content"
"""The ledger's reason for rows with lost content."""
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
_QUOTING = re.compile(r"""[\s"'\\]""")


def check_losses(
    own: Owned,
    tools: list[dict[str, Any]] | None,
    made: Marked,
    template: ChatTemplate,
    allowed: Set[str],
    is_dropped: Callable[[int], bool],
) -> tuple[tuple[str, ...], UnprovedError | None]:
    """The allowed losses of a row ("reasoning", and words of `tokenizer.allow_lost`); and why the words of a turn are
    not found whole and in one place, if so.

    Words may be in the text although they could not be followed, through `%`, for example: they are not lost.

    Args:
        made: the rendered conversation.
        allowed: what may be lost, in the words of `tokenizer.allow_lost`.
        is_dropped: whether the text stays the same with other words in the place of the thought of a code.

    Raises:
        RowRejectedError: `lost_content`, if the template leaves anything else out.
    """
    written = _pieces(made.text, made.words)
    dropped: set[str] = set()
    torn: UnprovedError | None = None
    lost: dict[str | None, str] = {}  # the first of each kind
    for code, said in own.said.items():
        index, pieces = code >> MESSAGE, written.get(code)
        role = own.roles[index]
        if pieces is not None:
            if code & CALL:
                continue
            if len(pieces) == 1 and len(pieces[0].strip()) >= len(said.strip()):
                continue
            size, shown = _size(said), sum(map(_size, pieces))
            if shown > size and role == ASSISTANT:
                torn = torn or UnprovedError("the template writes its words more than once", index)
            if shown >= size or code & (REASONING | TAGGED):
                continue
        elif code & CALL and code_of(index, 0, CALL) in written:
            continue
        elif _hidden(said, made, None if code & (CALL | REASONING | TAGGED) else template):
            if code & (REASONING | TAGGED) and is_dropped(code):  # the template's own words are the same
                dropped.add(DROPPED_REASONING)
                continue
            if role == ASSISTANT:
                torn = torn or UnprovedError("its words could not be followed into the text", index)
            continue
        elif code & (REASONING | TAGGED):
            dropped.add(DROPPED_REASONING)
            continue
        if code & CALL:
            lost.setdefault("tool_calls", f"tool call {part_of(code)} of message {index + 1}")
        else:
            whole = "all of " if pieces is not None else ""
            lost.setdefault(ALLOWED_AS.get(role), f"{whole}what message {index + 1} ({role!r}) says")
    for index in sorted(own.saying(CALL)):
        if "tool_calls" not in lost and (part := _lost_of_calls(own, index, made)):
            lost["tool_calls"] = f"{part!r:.80} of the tool calls of message {index + 1}"
    rest = _rest(made) if tools else ""
    if names := [name for name in map(_tool_name, tools or ()) if name not in rest]:
        lost["tools"] = f"the tools {', '.join(names)}"
    dropped |= {str(kind) for kind in lost if kind in allowed}
    if refused := {kind: what for kind, what in lost.items() if kind not in allowed}:
        raise _rejected(refused, allowed, template.name)
    return tuple(sorted(dropped)), torn


def check_documents(template: ChatTemplate, text: str, allowed: Set[str]) -> tuple[str, ...]:
    """The loss of a row's documents, if it is allowed: each must have one of its texts in the rendering.

    Raises:
        RowRejectedError: `lost_content`.
    """
    for number, document in enumerate(template.documents or (), 1):
        texts = [bare(value) for value in document.values() if isinstance(value, str) and not is_blank(value)]
        if not texts or any(value in text or _JSON.encode(value)[1:-1] in text for value in texts):
            continue
        if "documents" in allowed:
            return ("documents",)
        raise _rejected({"documents": f"document {number} of the row"}, allowed, template.name)
    return ()


def _hidden(said: Any, made: Marked, template: ChatTemplate | None) -> bool:
    """Whether what was said, if it has words, stands in the text outside of the words that were followed, as it is or
    in JSON.

    Args:
        template: for contents, of which what the template says itself does not count. A thought or a call could be
            there all the same, and would be taken for the answer.
    """
    rest = _rest(made)
    texts = [bare(text) for text in ([said] if isinstance(said, str) else _texts_under(said))]
    found = all(text in rest or _JSON.encode(text)[1:-1] in rest for text in texts)
    return bool(texts) and found and (template is None or not all(text in template.source for text in texts))


def _rejected(refused: dict[str | None, str], allowed: Set[str], name: str) -> RowRejectedError:
    """The error for losses, by kind, under the template of this name; names the first, and allows all."""
    what = refused.get(None) or next(iter(refused.values()))
    # With those that are allowed already, because this replaces them.
    other = f"allow it with tokenizer.allow_lost: [{', '.join(sorted({*map(str, refused), *allowed}))}]"
    if None in refused:
        other = f"correct the role: common ones are {', '.join(ALLOWED_AS)}"
    return RowRejectedError(
        LOST if None not in refused else "unknown_role",
        f"the chat template '{name}' does not write {what}; take a template that does, or {other}",
    )


def _pieces(text: str, words: Sequence[Word]) -> Mapping[int, list[str]]:
    """The texts of the words of each code, without those of white space."""
    out: dict[int, list[str]] = {}
    for begin, end, code in words:
        if begin < end and not (text[begin].isspace() and text[begin:end].isspace()):
            out.setdefault(code, []).append(text[begin:end])
    return out


def _size(text: str) -> int:
    """How many characters a text has, without white space and the tags of thoughts."""
    return sum(map(len, bare(text).split()))


def _rest(made: Marked) -> str:
    """What a text has between the words of its messages."""
    words = [word for word in made.words if word[2] >= 0]
    begins = accumulate((word[1] for word in words), max, initial=0)
    ends = (*(word[0] for word in words), len(made.text))
    return "\0".join([made.text[low:high] for low, high in zip(begins, ends, strict=True) if low < high])


def _lost_of_calls(own: Owned, index: int, made: Marked) -> str:
    """A name, key or value of a message's calls that its turn does not have as often as the calls do; "" if there is
    none. Booleans and nulls are not looked for: templates write them in many ways.
    """
    words = [word for word in made.words if word[2] >= 0]
    places = [place for place, word in enumerate(words) if word[2] >> MESSAGE == index]
    # Where none of its words was followed, all that the template writes between words may be its turn.
    low = words[places[0]][0] if places else 0
    high = words[places[-1] + 1][0] if places and places[-1] + 1 < len(words) else len(made.text)
    others = [word for word in words if low <= word[0] < high and not (word[2] >> MESSAGE == index and word[2] & CALL)]
    kept, done = [], low
    for begin, end, _ in others:
        kept.append(made.text[done:begin])
        done = max(done, end)
    turn = _compact("".join([*kept, made.text[done:high]]))
    calls = [said for code, said in own.said.items() if code & CALL and code >> MESSAGE == index]
    for part, count in Counter(part for call in calls for part in _parts_of_call(call)).items():
        forms = {_compact(str(part)), _compact(_JSON.encode(part)), _compact(json.dumps(part)), _compact(escape(part))}
        if "" not in forms and max(map(turn.count, forms)) < count:
            return str(part)
    return ""


def _parts_of_call(value: Any, *, inside: bool = False) -> Iterator[str | int | float]:
    """The name of a call, and the keys and values of its arguments."""
    if isinstance(value, list):
        for item in value:
            yield from _parts_of_call(item, inside=inside)
    elif isinstance(value, dict):
        for key, item in value.items():
            if inside:
                yield str(key)
            yield from _parts_of_call(item, inside=inside or key in CALL_KEYS)
    elif inside and isinstance(value, str | int | float) and not isinstance(value, bool):
        yield value


def _compact(text: str) -> str:
    """A text without white space, and without what JSON and Python put around and into texts."""
    return _QUOTING.sub("", text)


def _texts_under(value: Any, *, inside: bool = False) -> Iterator[str]:
    """The texts of the name and the arguments of a tool call, that are more than white space."""
    if isinstance(value, str):
        if inside and not is_blank(value):
            yield value
    elif isinstance(value, list | dict):
        for key, item in value.items() if isinstance(value, dict) else ((None, one) for one in value):
            yield from _texts_under(item, inside=inside or key in CALL_KEYS)


def _tool_name(tool: Any) -> str:
    inner = tool.get("function") if isinstance(tool.get("function"), dict) else tool
    return str(inner.get("name", ""))
