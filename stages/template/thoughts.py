"""Thoughts of the assistant between `<think>` and `</think>` in a content."""

import re

OPENING, CLOSING = "<think>", "</think>"
"""Tags around thoughts in contents, whatever the template."""
IN_BOTH = "think>"
"""What both tags contain, for a quick look."""
_TAGS = re.compile("</?think>")


def is_blank(text: str) -> bool:
    """Whether a text is empty, or only white space."""
    return not text or text.isspace()


def bare(text: str) -> str:
    """A text without the tags, and without white space around it."""
    return _TAGS.sub("", text).strip()


def thought_end(content: str) -> int:
    """Where the thought at the beginning of a content ends, before its closing tag; 0 if there is none.

    Everything before the first closing tag is one, with an opening tag or without: templates and servers read it so. So
    is a content that begins with an opening tag that nothing closes. A thought without a character other than white
    space is none: the empty block is what a model generates instead of one.
    """
    end = content.find(CLOSING)
    if end < 0:
        end = len(content) if content.lstrip().startswith(OPENING) else 0
    return end if bare(content[:end]) else 0


def has_more_thoughts(content: str) -> bool:
    """Whether a content has words before its thought, or several closing tags, so that more may be thoughts."""
    words = content[: content.find(CLOSING)].partition(OPENING)
    return content.count(CLOSING) > 1 or (CLOSING in content and bool(words[1]) and not is_blank(words[0]))
