"""The tags around an assistant's thoughts, and the thoughts between them."""

import re
from collections.abc import Iterable, Iterator, Sequence
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

    def within(self, text: str, begin: int, end: int) -> bool:
        """Whether one of the tags may stand in text[begin:end]."""
        if len(self.tags) == 1:
            return text.find("think>", begin, end) >= 0
        return any(text.find(tag, begin, end) >= 0 for pair in self.tags for tag in pair)

    def first_tag(self, text: str, begin: int = 0) -> int:
        """Where the first of the tags after `begin` may begin in a text; its length if it has none."""
        tags = ("think>",) if len(self.tags) == 1 else [tag for pair in self.tags for tag in pair]
        return min([at for tag in tags if (at := text.find(tag, begin)) >= 0], default=len(text))

    def thoughts(
        self, text: str, begin: int, end: int, hidden: Sequence[tuple[int, int]] = ()
    ) -> Iterator[tuple[int, int]]:
        """Yield (begin, end) of each thought between tags: from its opening tag to its closing one, without that.

        White space before an opening tag at `begin` belongs to the thought.

        Args:
            hidden: stretches that are not searched. A thought that is not closed ends before the first of them.
        """
        opened, first, opening, closing, seen = -1, begin, "", "", False
        for found in _pattern(self.tags).finditer(text, begin, end):
            if hidden and any(low < found.end() and found.start() < high for low, high in hidden):
                continue
            pair = next(pair for pair in self.tags if found[0] in pair)
            if found[0] == pair[0]:
                if opened < 0:
                    opened, (opening, closing) = found.start(), pair
                    first = begin if is_blank(text[begin:opened]) else opened
            elif opened >= 0 and found[0] == closing:
                if not is_blank(text[opened + len(opening) : found.start()]):
                    yield first, found.start()
                opened = -1
            elif not (seen or any(low < found.start() for low, _ in hidden) or is_blank(text[begin : found.start()])):
                yield begin, found.start()
            seen = True
        if opened >= 0 and first == begin:
            stop = min((low for low, _ in hidden if low > opened), default=end)
            if not is_blank(text[opened + len(opening) : stop]):
                yield begin, stop
