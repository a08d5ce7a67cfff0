"""Finds the program in an answer."""

import re
from collections.abc import Iterator
from operator import itemgetter

# Possessive quantifiers, and nothing that goes on over lines: hostile answers take no more than linear time.
_FENCE = re.compile(r"^ {0,3}(?P<ticks>`{3,}+|~{3,}+)[ \t]*+(?P<info>[^\n`]*+)$")
_PYTHON = frozenset({"python", "python3", "py", "py3", "pypy", "pypy3"})
_PLAIN = frozenset({"", "text", "code", "plaintext"})
_STATEMENT = re.compile(
    r"^(?:from\s+\S+\s+import\b|import\s+\w|(?:async\s+)?def\s+\w+\s*\(|class\s+\w+\s*[:(]|@\w"
    r"|(?:for|while|if|with)\b.*:\s*(?:#.*)?$|try\s*:|print\s*\(|[A-Za-z_]\w*+(?:[ \t]*+,[ \t]*+\w++)*+[ \t]*+=[^=])",
    re.MULTILINE,
)


def extract(answer: str) -> str:
    """The program in an answer, or ""; only what follows a closed `<think>` block counts.

    The last fence counts that is labelled as Python, a closed one before one that was opened and not closed, as where
    an answer was cut; else the last one without a label, likewise. An answer without any fence is a program if one of
    its lines begins like a Python statement.
    """
    if "<think>" in answer or "</think>" in answer:
        _, ended, after = answer.rpartition("</think>")
        if not ended or "<think>" in after:
            return ""
        answer = after
    answer = answer.replace("\r\n", "\n")
    fences = [one for one in _fences(answer) if one[1].strip()]
    for labels in (_PYTHON, _PLAIN):
        wanted = [(code, closed) for label, code, closed in fences if label in labels]
        if wanted:
            return max(reversed(wanted), key=itemgetter(1))[0]
    return answer if not fences and _STATEMENT.search(answer) else ""


def _fences(text: str) -> Iterator[tuple[str, str, bool]]:
    """(label, code, whether it is closed) of blocks as CommonMark has them: closed by as many of the same character."""
    opened, label, inside = "", "", list[str]()
    for line in text.split("\n"):
        match = _FENCE.match(line)
        words = match["info"].split() if match else []
        if match and not opened:
            opened, label, inside = match["ticks"], words[0].strip("{}.").lower() if words else "", []
        elif match and match["ticks"].startswith(opened) and not words:
            yield label, "\n".join(inside), True
            opened = ""
        elif opened:
            inside.append(line)
    if opened:
        yield label, "\n".join(inside), False
