"""Finds the program in an answer."""

import re
from collections.abc import Iterator
from typing import NamedTuple

# Possessive quantifiers, and nothing that spans lines, so that a hostile answer takes no more than linear time.
_FENCE = re.compile(r"^ {0,3}(?P<ticks>`{3,}+|~{3,}+)[ \t]*+(?P<info>[^\n`]*+)$")
_PYTHON_LABELS = frozenset({"python", "python3", "py", "py3", "pypy", "pypy3"})
_PLAIN_LABELS = frozenset({"", "text", "code", "plaintext"})
# A line that begins like a statement: an import, a definition, a class, a decorator, a block, a print, an assignment.
_STATEMENT = re.compile(
    r"^(?:from\s+\S+\s+import\b|import\s+\w|(?:async\s+)?def\s+\w+\s*\(|class\s+\w+\s*[:(]|@\w"
    r"|(?:for|while|if|with)\b.*:\s*(?:#.*)?$|try\s*:|print\s*\(|[A-Za-z_]\w*+(?:[ \t]*+,[ \t]*+\w++)*+[ \t]*+=[^=])",
    re.MULTILINE,
)


class _Fence(NamedTuple):
    """A fenced block of code, as CommonMark has it."""

    label: str
    """The first word behind the opening fence, lowercase; may be empty."""
    code: str
    closed: bool


def extract_program(answer: str) -> str:
    """The program in an answer, or "" if it has none. If an answer has a `<think>` block, only what follows it counts.

    Of the fenced blocks that are labelled as Python, the program is the last closed one; if none is closed, because the
    answer was cut, the last one. If no block is labelled as Python, blocks without a label, or labelled as text, count
    in the same way. An answer without any block is a program if one of its lines begins like a Python statement.
    """
    if "<think>" in answer or "</think>" in answer:
        _, end_tag, after = answer.rpartition("</think>")
        if not end_tag or "<think>" in after:  # the answer was cut in its thoughts
            return ""
        answer = after
    answer = answer.replace("\r\n", "\n")
    fences = [fence for fence in _fences(answer) if fence.code.strip()]
    # By label first: an answer may show Python, and then what the program prints.
    for labels in (_PYTHON_LABELS, _PLAIN_LABELS):
        labelled = [fence for fence in fences if fence.label in labels]
        closed = [fence for fence in labelled if fence.closed]
        if labelled:
            return (closed or labelled)[-1].code
    return answer if not fences and _STATEMENT.search(answer) else ""


def _fences(text: str) -> Iterator[_Fence]:
    """The fenced blocks of a text, in order. A block is closed by at least as many of the same character."""
    opening_ticks = ""  # of the open block; "" between blocks
    label = ""
    lines: list[str] = []
    for line in text.split("\n"):
        match = _FENCE.match(line)
        info = match["info"].split() if match else []
        if match and not opening_ticks:
            opening_ticks = match["ticks"]
            label = info[0].strip("{}.").lower() if info else ""  # `{.python}` is written, too
            lines = []
        elif match and match["ticks"].startswith(opening_ticks) and not info:
            # A fence with a label closes nothing: in CommonMark, it is a line of the block's code.
            yield _Fence(label, "\n".join(lines), closed=True)
            opening_ticks = ""
        elif opening_ticks:
            lines.append(line)
    if opening_ticks:
        yield _Fence(label, "\n".join(lines), closed=False)
