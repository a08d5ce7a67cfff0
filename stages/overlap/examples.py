"""What training examples share with evaluation rows.

An example is searched in two parts, its prompt and what follows it. A question of an evaluation row is found in an
example as soon as one n-gram of it is there. An answer is found if at least `ANSWER_SHARE` of its n-grams are: programs
share short idioms without being copies.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...schemas.rows import Example, Messages
from .evaluation_row import content_of
from .search import OverlapSearch, Stretch, TextHit

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
    share: float
    """The share of the evaluation text's n-grams that the example has; 1 if it was compared whole."""
    longest: str
    """The longest run of words that both share, as they were compared."""
    part: str
    """The part of the example that shares the most: its text."""
    stretches: tuple[Stretch, ...]
    """What that part shares."""


def search_examples(search: OverlapSearch, examples: Sequence[Example]) -> list[ExampleHit]:
    """Search all examples; the hits are in the order of examples, then of evaluation texts."""
    out = []
    for first, parts, texts in _groups(examples):
        hits = search.search(texts)
        for number, mine in enumerate(parts):
            found: dict[int, list[tuple[TextHit, str]]] = {}
            for part in mine:
                for hit in hits[part]:
                    found.setdefault(hit.text, []).append((hit, texts[part]))
            every = [_hit(search, first + number, text, found[text]) for text in sorted(found)]
            out += [hit for hit in every if hit is not None]
    return out


def _groups(examples: Sequence[Example]) -> Iterator[tuple[int, list[list[int]], list[str]]]:
    """Yield (first example, the parts of each, texts of all parts) of neighbours. A row's examples share its prompt."""
    first = size = 0
    parts, texts, known = list[list[int]](), list[str](), dict[int, int]()
    for number, example in enumerate(examples):
        if size >= _GROUP:
            yield first, parts, texts
            first, size, parts, texts, known = number, 0, [], [], {}
        parts.append([])
        for side in (example.prompt, example.completion, example.rejected, example.text):
            if not side:
                continue
            if id(side) not in known:
                known[id(side)] = len(texts)
                texts.append(side if isinstance(side, str) else _spoken(side))
                size += len(texts[-1])
            parts[-1].append(known[id(side)])
    yield first, parts, texts


def _hit(search: OverlapSearch, example: int, text: int, hits: Sequence[tuple[TextHit, str]]) -> ExampleHit | None:
    best, part = max(hits, key=lambda one: sum(stretch.words for stretch in one[0].stretches))
    count = int(search.index.counts[text])
    covered = len(np.unique(np.concatenate([hit.places for hit, _ in hits])))
    share = covered / count if count else 1.0
    if not search.index.asks[text] and share < ANSWER_SHARE:
        return None
    match = WHOLE if covered == count else NEARLY if share >= NEAR_WHOLE else PART
    return ExampleHit(example, text, match, share, best.longest, part, best.stretches)


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
