"""Finds the program in an answer, by rules that are counted."""

import re
from dataclasses import dataclass
from enum import StrEnum

# Possessive quantifiers, and nothing that goes on over lines: hostile answers take no more than linear time.
_FENCE = re.compile(r"^ {0,3}(?P<ticks>`{3,}+|~{3,}+)[ \t]*+(?P<info>[^\n`]*+)$")
_PYTHON = frozenset({"python", "python3", "py", "py3", "pypy", "pypy3"})
_PLAIN = frozenset({"", "text", "code", "plaintext"})
_STATEMENT = re.compile(
    r"^(?:from\s+\S+\s+import\b|import\s+\w|(?:async\s+)?def\s+\w+\s*\(|class\s+\w+\s*[:(]|@\w"
    r"|(?:for|while|if|with)\b.*:\s*(?:#.*)?$|try\s*:|print\s*\(|[A-Za-z_]\w*+(?:[ \t]*+,[ \t]*+\w++)*+[ \t]*+=[^=])",
    re.MULTILINE,
)


class Extraction(StrEnum):
    """The rule by which a program was found, in the order in which they are tried."""

    python_fence = "fenced as Python"
    """The last closed fence that is labelled as Python."""
    fence = "fenced"
    """The last closed fence without a label, where none is labelled as Python."""
    open_fence = "fence not closed"
    """The last fence was opened and not closed, as where an answer was cut; before `fence` if labelled as Python."""
    bare = "whole answer"
    """There is no fence, and at least one line begins like a Python statement."""
    none = "none"
    """There is no program."""
    reference = "reference"
    """Not an answer: one of the data's own programs."""


_TRIED = (
    (_PYTHON, True, Extraction.python_fence),
    (_PYTHON, False, Extraction.open_fence),
    (_PLAIN, True, Extraction.fence),
    (_PLAIN, False, Extraction.open_fence),
)
"""(labels, whether the fence is closed, rule), in the order in which they are tried."""


@dataclass(frozen=True, slots=True)
class ExtractedCode:
    """A program, and how it was found; the code is empty for `none`."""

    code: str
    rule: Extraction


@dataclass(frozen=True, slots=True)
class _CodeFence:
    label: str
    code: str
    closed: bool


def extract(answer: str) -> ExtractedCode:
    """The program in an answer; only what follows a closed `<think>` block counts."""
    if "<think>" in answer or "</think>" in answer:
        _, ended, after = answer.rpartition("</think>")
        if not ended or "<think>" in after:
            return ExtractedCode("", Extraction.none)
        answer = after
    answer = answer.replace("\r\n", "\n")
    fences = [one for one in _fences(answer) if one.code.strip()]
    for labels, closed, rule in _TRIED:
        wanted = [one for one in fences if one.closed == closed and one.label in labels]
        if wanted:
            return ExtractedCode(wanted[-1].code, rule)
    if not fences and _STATEMENT.search(answer):
        return ExtractedCode(answer, Extraction.bare)
    return ExtractedCode("", Extraction.none)


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
