"""What training examples share with evaluation rows.

An example is searched in two parts, its prompt and what follows it. A question of an evaluation row is found in an
example as soon as one n-gram of it is there. An answer is found if at least `ANSWER_SHARE` of its n-grams are: programs
share short idioms without being copies.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...schemas.rows import Example, Messages
from .evaluation_row import content_of
from .index import OverlapIndex
from .search import Stretch, TextHit, search

ANSWER_SHARE = 0.5
NEAR_WHOLE = 0.8
"""A question or an answer of which this share of n-grams is found is there nearly whole."""
WHOLE, NEARLY, PART = "whole", "near-whole", "n-gram"
_GROUP = 1 << 19
"""Characters that are searched at once: their arrays of 64-bit numbers should fit into a core's cache."""


@dataclass(frozen=True, slots=True)
class ExampleHit:
    """What one example shares with one evaluation text."""

    example: int
    """The example's place in the list that was searched."""
    text: int
    """The evaluation text."""
    match: str
    """WHOLE, NEARLY or PART."""
    covered: int
    """How many n-grams of the evaluation text are in the example; 0 if it was compared whole."""
    longest: str
    """The longest run of words that both share, as they were compared."""
    part: str
    """The part of the example that shares the most: its text."""
    stretches: tuple[Stretch, ...]
    """What that part shares."""


@dataclass(frozen=True, slots=True)
class FoundExamples:
    """What a search found."""

    hits: list[ExampleHit]
    """In the order of examples, then of evaluation texts."""
    characters: int
    """How much text was searched; a prompt that several examples of a row share counts once."""


def search_examples(index: OverlapIndex, asks: NDArray[np.bool_], examples: Sequence[Example]) -> FoundExamples:
    """Search all examples.

    Args:
        asks: (T,) whether each evaluation text is a question.
    """
    out, characters = [], 0
    for first, parts, texts in _groups(examples):
        characters += sum(map(len, texts))
        hits = search(index, texts)
        for place, mine in enumerate(parts):
            found: dict[int, list[tuple[TextHit, str]]] = {}
            for part in mine:
                for hit in hits[part]:
                    found.setdefault(hit.text, []).append((hit, texts[part]))
            for text in sorted(found):
                one = _hit(index, bool(asks[text]), first + place, text, found[text])
                if one is not None:
                    out.append(one)
    return FoundExamples(out, characters)


def _hit(
    index: OverlapIndex, ask: bool, example: int, text: int, hits: Sequence[tuple[TextHit, str]]
) -> ExampleHit | None:
    best, part = max(hits, key=lambda one: sum(stretch.words for stretch in one[0].stretches))
    postings = hits[0][0].postings if len(hits) == 1 else np.unique(np.concatenate([hit.postings for hit, _ in hits]))
    if postings[0] < 0:
        return ExampleHit(example, text, WHOLE, 0, best.longest, part, best.stretches)
    covered, count = len(postings), int(index.counts[text])
    if not ask and covered < ANSWER_SHARE * count:
        return None
    match = WHOLE if covered == count else NEARLY if covered >= NEAR_WHOLE * count else PART
    return ExampleHit(example, text, match, covered, best.longest, part, best.stretches)


def _groups(examples: Sequence[Example]) -> Iterator[tuple[int, list[list[int]], list[str]]]:
    """Yield (first example, the parts of each, texts of all parts) of neighbours. A row's examples share its prompt."""
    first, size = 0, 0
    parts: list[list[int]] = []
    texts: list[str] = []
    before, at = None, -1
    for number, example in enumerate(examples):
        if size >= _GROUP:
            yield first, parts, texts
            first, size, parts, texts, before = number, 0, [], [], None
        mine = []
        for side in (example.prompt, example.completion, example.rejected, example.text):
            if side is None or not side:
                continue
            if side is example.prompt and side is before:
                mine.append(at)
                continue
            mine.append(len(texts))
            if side is example.prompt:
                before, at = side, len(texts)
            texts.append(side if isinstance(side, str) else _spoken(side))
            size += len(texts[-1])
        parts.append(mine)
    if parts:
        yield first, parts, texts


def _spoken(messages: Messages) -> str:
    """The contents of messages, with reasoning and the arguments of tool calls."""
    out = []
    for message in messages:
        out += [content_of(message)]
        out += [text for key in ("reasoning_content", "reasoning") if isinstance(text := message.get(key), str)]
        for call in message.get("tool_calls") or ():
            function = call.get("function", call) if isinstance(call, dict) else {}
            said = function.get("arguments") if isinstance(function, dict) else None
            if said:
                out.append(said if isinstance(said, str) else str(said))
    return "\n".join(out)
