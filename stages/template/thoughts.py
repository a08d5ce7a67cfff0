"""Thoughts of the assistant between `<think>` and `</think>` in a content."""

import re
from collections.abc import Iterator

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


def thoughts_in(content: str) -> Iterator[tuple[int, int]]:
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
