"""Rendered examples that wait for a tokenizer engine, and the spans of texts without turns."""

from dataclasses import dataclass, field

from ...schemas.digests import text_number
from ...schemas.rows import Example, SpanKind
from ..render.rendered import Rendered, Spans, text_for_digest

BATCH_CHARACTERS = 1 << 20
"""Characters encoded at once; their tokens still fit into a core's cache."""
BATCH_EXAMPLES = 4096
"""Examples encoded at once, of short texts."""
NO_TURN = -1
"""The turn of spans outside of conversations."""


@dataclass(slots=True)
class RenderedBatch:
    """Rendered examples that wait for the engine."""

    examples: list[Example] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    spans: list[Spans] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    """Of each example's digest: what distinguishes examples of the same text."""
    characters: int = 0
    """Of all texts."""
    added_eos: int = 0
    """Texts to which rendering has added an end-of-sequence token."""

    def add(self, example: Example, rendered: Rendered) -> None:
        """Append an example."""
        spans = rendered.spans
        if example.weight != 1:
            spans = spans._replace(weights=tuple(weight * example.weight for weight in spans.weights))
        # The same text with another prompt, or with other flags or weights, is another example. If all weights are 1,
        # the end of the prompt is all that distinguishes it. `count` finds True and 1.0, which are equal.
        seed = rendered.completion_begin
        if spans.weights.count(True) < len(spans.weights):
            seed ^= text_number(text_for_digest(spans).encode())
        self.examples.append(example)
        self.texts.append(rendered.text)
        self.spans.append(spans)
        self.seeds.append(seed)
        self.characters += len(rendered.text)

    @property
    def is_full(self) -> bool:
        """Whether the batch is large enough to encode."""
        return self.characters >= BATCH_CHARACTERS or len(self.texts) >= BATCH_EXAMPLES


def spans_without_turns(completion_begin: int, length: int, *, is_plain_text: bool = False) -> Spans:
    """The spans of a text without turns: its prompt, if there is one, and what follows.

    Args:
        completion_begin: where the prompt ends, in characters.
        is_plain_text: whether it has no prompt and no completion.
    """
    kind = SpanKind.TEXT if is_plain_text else SpanKind.COMPLETION
    if not completion_begin:
        return Spans(ends=(length,), kinds=(kind,), turns=(NO_TURN,), weights=(True,))
    return Spans(
        ends=(completion_begin, length),
        kinds=(SpanKind.PROMPT, kind),
        turns=(NO_TURN, NO_TURN),
        weights=(True, True),
    )
