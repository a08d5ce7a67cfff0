"""Thoughts of the assistant: between `<think>` and `</think>` in a content, and as a template writes them."""

import re
from collections.abc import Iterator
from typing import NamedTuple

OPENING, CLOSING = "<think>", "</think>"
"""Tags around thoughts in contents, whatever the template."""
IN_BOTH = "think>"
"""What both tags contain, for a quick look."""
_TAGS = re.compile("</?think>")
_TAG = re.compile(r"\s*(<[^<>\s]*>|\[[^\[\]\s]*\])")


def is_blank(text: str) -> bool:
    """Whether a text is empty, or only white space."""
    return not text or text.isspace()


def bare(text: str) -> str:
    """A text without the tags, and without white space around it."""
    return _TAGS.sub("", text).strip()


def thoughts(content: str) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of each thought of a content: from its opening tag to its closing one, without that.

    Everything before a closing tag that comes first is one, too: templates and servers read it so. An opening tag that
    nothing closes counts only at the beginning. White space before an opening tag at the beginning belongs to the
    thought. A thought without a character other than white space is no thought: the empty block is what a model
    generates instead of one.
    """
    opened, seen = -1, False
    for found in _TAGS.finditer(content):
        if found[0] == OPENING:
            if opened < 0:
                opened = found.start()
        elif opened >= 0:
            if not is_blank(content[opened + len(OPENING) : found.start()]):
                yield 0 if is_blank(content[:opened]) else opened, found.start()
            opened = -1
        elif not (seen or is_blank(content[: found.start()])):
            yield 0, found.start()
        seen = True
    if opened >= 0 and is_blank(content[:opened]) and not is_blank(content[opened + len(OPENING) :]):
        yield 0, len(content)


class ThoughtStyle(NamedTuple):
    """How a template writes a thought of a field, learned from a sample conversation."""

    opening: str = ""
    """What it writes before the words, without white space around it."""
    closing: str = ""
    """The first tag that it writes after them."""

    @classmethod
    def of(cls, before: str, said: str, after: str) -> "ThoughtStyle":
        """The style of a template that writes these texts around a thought.

        Args:
            before: between the question and the thought.
            said: the part of it that comes after the generation prompt; if there is none, the prompt ends with the tag.
        """
        tags, closing = list(_TAG.finditer(before.rstrip())), _TAG.match(after)
        opening = said.strip()
        if not opening and tags and tags[-1].end() == len(before.rstrip()):
            opening = tags[-1][1]
        return cls(opening, closing[1] if closing else "")
