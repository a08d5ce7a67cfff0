"""The special tokens in what a template writes: which of them close a turn, and what stands between them."""

import re
from collections.abc import Collection
from itertools import pairwise

_MATCHES_NOTHING = "(?!)"


def token_pattern(tokens: Collection[str]) -> re.Pattern[str]:
    """Return a pattern that finds the first of some tokens; of two at the same place it takes the longer."""
    longest_first = sorted({token for token in tokens if token.strip()}, key=lambda token: (-len(token), token))
    return re.compile("|".join(map(re.escape, longest_first)) if longest_first else _MATCHES_NOTHING)


class SpecialTokens:
    """The special tokens of a template.

    Args:
        pattern: finds them.
        generation_stops: those at which a generation with this model stops, as far as that is known.
    """

    def __init__(self, pattern: re.Pattern[str], generation_stops: Collection[str] = ()) -> None:
        self.pattern = pattern
        self.generation_stops = frozenset(generation_stops)

    def closing_span(self, end: str) -> tuple[int, int]:
        """Where the closing tokens within the end of a turn begin and end. Without any, both are where its text ends,
        before white space.

        A turn closes at the first token at which a generation would stop, else at its last special token. Tokens right
        before that one close it with it.

            "<|im_end|>\\n"                (0, 10)
            "\\n</answer><|eot|><|eom|>"   (10, 24): both tokens
            "\\n"                          (0, 0)
        """
        tokens = list(self.pattern.finditer(end))
        if not tokens:
            length = len(end.rstrip())
            return length, length
        stops = [index for index, token in enumerate(tokens) if token.group() in self.generation_stops]
        last = stops[0] if stops else len(tokens) - 1
        first = last
        while first and tokens[first - 1].end() == tokens[first].start():
            first -= 1
        return tokens[first].start(), tokens[last].end()

    def ends_generation(self, closing: str) -> bool:
        """Whether a generation would stop at one of the tokens in a text."""
        return not self.generation_stops.isdisjoint(self.pattern.findall(closing))

    def is_only_end(self, end: str, last_ends: Collection[str]) -> bool:
        """Whether a text that is taken for the end of a turn can be nothing else. One of these is enough: a generation
        would stop in it; its special tokens stand side by side; or its last token also closes turns at a text's end,
        and stands in it once.

        Args:
            end: the text, with at least one special token.
            last_ends: how such turns end where they end the text.
        """
        tokens = list(self.pattern.finditer(end))
        are_side_by_side = all(left.end() == right.start() for left, right in pairwise(tokens))
        if self.ends_generation(end) or are_side_by_side:
            return True
        texts = [token.group() for token in tokens]
        closing_tokens = {token for last_end in last_ends for token in self.pattern.findall(last_end)[-1:]}
        return texts[-1] in closing_tokens and texts.count(texts[-1]) == 1

    def segments(self, text: str) -> list[str]:
        """The special tokens of a text, and what stands between them."""
        segments: list[str] = []
        end_of_last = 0
        # "a<|end|>b" gives "a", "<|end|>" and "b".
        for token in self.pattern.finditer(text):
            segments += [text[end_of_last : token.start()], token.group()]
            end_of_last = token.end()
        segments.append(text[end_of_last:])
        return [segment for segment in segments if segment]

    def continuation(self, text: str, place: int) -> tuple[str, bool]:
        """How a text goes on from a place: the white space, and whether a special token is behind it. Behind the first
        token of `<|im_start|>user`, that is ("", False), and of `<s> <|user|>`, (" ", True).
        """
        rest_of_text = text[place:]
        space = rest_of_text[: len(rest_of_text) - len(rest_of_text.lstrip())]
        return space, self.pattern.match(rest_of_text, len(space)) is not None
