"""The tags around an assistant's thoughts, and the thoughts between them."""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple

THINK = ("<think>", "</think>")
"""Tags around thoughts in contents, of whatever template."""
_TAG = re.compile(r"\s*(<[^<>\s]*>|\[[^\[\]\s]*\])")


@cache
def _pattern(tags: tuple[tuple[str, str], ...]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(tag) for pair in tags for tag in pair))


def is_blank(text: str) -> bool:
    """Whether a text is empty, or only white space."""
    return not text or text.isspace()


class ThoughtStyle(NamedTuple):
    """How a template writes a thought, learned from a sample conversation."""

    opening: str = ""
    """What it writes before the words, without white space around it."""
    closing: str = ""
    """The first tag that it writes after them."""
    tags: tuple[tuple[str, str], ...] = (THINK,)
    """Pairs of tags around thoughts in contents."""

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
        end = closing[1] if closing else ""
        tag = _TAG.fullmatch(opening)
        own = (opening, end)
        paired = tag is not None and own != THINK and end == f"{opening[0]}/{opening[1:]}"
        return cls(opening, end, (THINK, own) if paired else (THINK,))

    def in_any(self, texts: Iterable[str]) -> bool:
        """Whether a text has one of the tags."""
        if len(self.tags) == 1:
            for text in texts:  # noqa: SIM110 - asked for every row: `any` with a generator takes twice as long
                if "think>" in text:
                    return True
            return False
        return any(tag in text for text in texts for pair in self.tags for tag in pair)

    def bare(self, text: str) -> str:
        """A text without the tags, and without white space around it."""
        return _pattern(self.tags).sub("", text).strip()

    def thoughts(self, content: str) -> Iterator[tuple[int, int]]:
        """Yield (begin, end) of each thought of a content: from its opening tag to its closing one, without that.

        Everything before a closing tag that comes first is one, too: templates and servers read it so. An opening tag
        that nothing closes counts only at the beginning. White space before an opening tag at the beginning belongs to
        the thought. A thought without a character other than white space is no thought: the empty block is what a model
        generates instead of one.
        """
        opened, opening, closing, seen = -1, "", "", False
        for found in _pattern(self.tags).finditer(content):
            pair = next(pair for pair in self.tags if found[0] in pair)
            if found[0] == pair[0]:
                if opened < 0:
                    opened, (opening, closing) = found.start(), pair
            elif opened >= 0 and found[0] == closing:
                if not is_blank(content[opened + len(opening) : found.start()]):
                    yield 0 if is_blank(content[:opened]) else opened, found.start()
                opened = -1
            elif not (seen or is_blank(content[: found.start()])):
                yield 0, found.start()
            seen = True
        if opened >= 0 and is_blank(content[:opened]) and not is_blank(content[opened + len(opening) :]):
            yield 0, len(content)
