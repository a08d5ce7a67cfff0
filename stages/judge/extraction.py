"""Finds the program in an answer."""

import re
from typing import NamedTuple

# Possessive quantifiers, and nothing that goes on over lines: hostile answers take no more than linear time.
_FENCE = re.compile(r"^ {0,3}(?P<ticks>`{3,}+|~{3,}+)[ \t]*+(?P<info>[^\n`]*+)$")
_PYTHON = frozenset({"python", "python3", "py", "py3", "pypy", "pypy3"})
_PLAIN = frozenset({"", "text", "code", "plaintext"})
_STATEMENT = re.compile(
    r"^(?:from\s+\S+\s+import\b|import\s+\w|(?:async\s+)?def\s+\w+\s*\(|class\s+\w+\s*[:(]|@\w"
    r"|(?:for|while|if|with)\b.*:\s*(?:#.*)?$|try\s*:|print\s*\(|[A-Za-z_]\w*+(?:[ \t]*+,[ \t]*+\w++)*+[ \t]*+=[^=])",
    re.MULTILINE,
)


class _CodeFence(NamedTuple):
    label: str
    code: str
    closed: bool


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
    fences = [one for one in _fences(answer) if one.code.strip()]
    for labels in (_PYTHON, _PLAIN):
        wanted = [one for one in fences if one.label in labels]
        if wanted:
            return max(reversed(wanted), key=lambda one: one.closed).code
    return answer if not fences and _STATEMENT.search(answer) else ""


def _fences(text: str) -> list[_CodeFence]:
    """Fenced blocks as CommonMark has them: a fence is closed by at least as many of the same character."""
    found: list[_CodeFence] = []
    opened: re.Match[str] | None = None
    inside: list[str] = []
    for line in text.split("\n"):
        match = _FENCE.match(line)
        if opened is None:
            opened, inside = match, []
        elif match and line.strip().startswith(opened["ticks"]) and not match["info"].strip():
            found.append(_CodeFence(_label(opened), "\n".join(inside), True))
            opened = None
        else:
            inside.append(line)
    if opened is not None:
        found.append(_CodeFence(_label(opened), "\n".join(inside), False))
    return found


def _label(fence: re.Match[str]) -> str:
    words = fence["info"].split()
    return words[0].strip("{}.").lower() if words else ""
