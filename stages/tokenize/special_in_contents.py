"""Special tokens that stand in the contents of a row, where the tokenizer makes real ones of them.

A user who writes `<|im_end|>` in a message ends the turn there, for the model. The tokens stay, and are counted.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ...schemas.rows import Example
from .vocabulary import AddedToken, SpecialTokenAffixes

_PREFIX_LENGTH = 2
"""Characters of a token that a text is searched for first: looking for a short constant is ten times as fast as for one
of many tokens, and few texts hold it."""


class SpecialTokenSearch:
    """Finds the special tokens of a tokenizer in texts.

    Args:
        added_tokens: of the tokenizer. Only special ones count: others, such as `<think>`, are usual in contents.
        affixes: the tokens around plain texts, which are not counted there.
    """

    def __init__(self, added_tokens: Sequence[AddedToken], affixes: SpecialTokenAffixes) -> None:
        contents = sorted({token.content for token in added_tokens if token.special and token.content}, key=len)
        # First characters → the tokens that begin with them.
        self._by_prefix: dict[str, list[str]] = {}
        for content in contents:
            self._by_prefix.setdefault(content[:_PREFIX_LENGTH], []).append(content)
        # The longest first, because a pattern takes the first alternative that fits.
        self._pattern = re.compile("|".join(map(re.escape, reversed(contents)))) if contents else None
        # In plain texts, the tokens around them are meant: they are taken off before the search.
        self._ends = tuple(text for text in (affixes.eos, affixes.suffix_text) if text)
        self._begins = tuple(text for text in (affixes.prefix_text,) if text)

    def find(self, example: Example) -> list[str]:
        """The special tokens in an example's texts or messages, each as often as it stands there. If its row has
        several examples, the prompt, which all of them share, is not searched.
        """
        is_only_example = example.sub < 0  # -1 stands for a row that is one example
        prompt = example.prompt if is_only_example else None
        tokens: list[str] = []
        for side in (prompt, example.completion, example.text, example.rejected):
            if isinstance(side, str):
                tokens += self._find_in_text(self._without_affixes(side))
            elif side:
                for message in side:
                    for value in message.values():
                        # Most values are texts: without a generator for each message, and with a list that is mostly
                        # empty in place of a Counter, this takes a third of the time, which was a tenth of encoding.
                        for text in (value,) if isinstance(value, str) else _texts(value):
                            tokens += self._find_in_text(text)
        return tokens

    def _without_affixes(self, text: str) -> str:
        """A text without the tokens that belong around it."""
        for end in self._ends:
            text = text.removesuffix(end)
        for begin in self._begins:
            text = text.removeprefix(begin)
        return text

    def _find_in_text(self, text: str) -> list[str]:
        """The special tokens in a text, in its order."""
        for prefix, contents in self._by_prefix.items():
            # `in` first, for the prefix that several tokens share, then for each token.
            if prefix in text and any(content in text for content in contents):
                assert self._pattern is not None
                return self._pattern.findall(text)
        return []


def _texts(value: Any) -> Iterator[str]:
    """The texts in a value of a message."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
