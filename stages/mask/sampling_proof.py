"""The sampling proof: are the trained tokens of a turn those that a model would sample there?

A model never sees a conversation as it is packed: at each turn it gets the messages before it, rendered with a
generation prompt, and generates until a stop token. So for every turn of the assistant, the tokens of that prompt alone
must be those that stand before the trained ones, and a stop token must end them, in the turn or in the header after it.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ...schemas.arrays import view
from ...schemas.errors import RowRejectedError
from ...schemas.ragged import begins_of
from ...schemas.rows import ASSISTANT_KINDS, Example
from ..template.chat_template import ChatTemplate
from ..template.tracked_messages import ASSISTANT, loss_weight
from ..tokenize.engines import Engine
from ..tokenize.token_spans import IS_NEXT_STOP


class Outcome(StrEnum):
    """What the proof found for one turn."""

    EXACT = "exact"
    """The trained tokens are those that a model would sample."""
    PREFIX = "prefix_differs"
    """Other tokens stand before the trained ones than a model would be given: the template renders the messages before
    the turn differently once it is there, or refuses them alone."""
    MISSING = "stop_missing"
    """No stop token ends the turn."""


class Proof(NamedTuple):
    """What was found for one turn of a batch."""

    line: int
    """The row of the document, and the number of the example in it."""
    sub: int
    message: int
    earlier: bool
    """Whether the turn comes before the completion."""
    outcome: Outcome


class _Turn(NamedTuple):
    """A turn of the assistant that is trained."""

    document: int
    """The place of its document in the batch."""
    message: int
    is_earlier: bool
    """Whether it comes before the completion."""
    prompt: str | None
    """The messages before it, rendered with a generation prompt; None if there are none, or the template refuses
    them."""


def prove(
    batch: pa.RecordBatch, examples: Sequence[Example], template: ChatTemplate, engine: Engine, stops: frozenset[int]
) -> Iterator[Proof]:
    """Yield a proof for each located turn that is trained. Plain texts have none.

    Args:
        batch: of `schemas.rows.ENCODED`.
        examples: those that it was made of, and others that could not be encoded.
        stops: ids that end a generation.

    Raises:
        TemplateError: see `ChatTemplate.render`.
    """
    turns = list[_Turn]()
    example_at = {(example.line, example.sub): example for example in examples}
    places = list(zip(batch["line"].to_pylist(), batch["sub"].to_pylist(), strict=True))
    for document, place in enumerate(places):
        turns += _trained_turns(document, example_at[place], template)
    if not turns:
        return
    ids_of_prompts = engine.encode([turn.prompt or "" for turn in turns]).per_text()

    ids, spans = batch.column("input_ids"), batch.column("spans")
    tokens = view(ids.values)
    token_starts = view(ids.offsets)
    span_starts = view(spans.offsets)
    ends, kinds, messages = (view(spans.values.field(name)) for name in ("end", "kind", "turn"))
    begins = begins_of(ends, span_starts)
    is_assistant = np.isin(kinds, ASSISTANT_KINDS)
    for turn, prompt_ids in zip(turns, ids_of_prompts, strict=True):
        low, high = span_starts[turn.document], span_starts[turn.document + 1]
        turn_spans = np.flatnonzero(is_assistant[low:high] & (messages[low:high] == turn.message)) + low
        if not len(turn_spans):
            continue
        # Answers to calls may stand within a turn: it is proved up to the first. Spans 4, 5 and 8 become 4 and 5.
        turn_spans = turn_spans[: 1 + np.count_nonzero(np.cumprod(np.diff(turn_spans) == 1))]
        document_tokens = tokens[token_starts[turn.document] : token_starts[turn.document + 1]]
        begin = int(begins[turn_spans[0]])
        last_span = turn_spans[-1]
        if last_span + 1 < high and IS_NEXT_STOP[kinds[last_span + 1]]:
            last_span += 1
        if turn.prompt is None or not np.array_equal(document_tokens[:begin], prompt_ids):
            outcome = Outcome.PREFIX
        elif stops.isdisjoint(document_tokens[begin : ends[last_span]].tolist()):
            outcome = Outcome.MISSING
        else:
            outcome = Outcome.EXACT
        yield Proof(*places[turn.document], turn.message, turn.is_earlier, outcome)


def _trained_turns(document: int, example: Example, template: ChatTemplate) -> Iterator[_Turn]:
    """The turns of the assistant that are trained, each with the prompt that a model would be given for it."""
    before = example.prompt or []
    after = example.completion or []
    if isinstance(before, str) or isinstance(after, str):
        return
    messages = [*before, *after]
    for number, message in enumerate(messages):
        if message["role"] != ASSISTANT or not loss_weight(message):
            continue
        prompt = None
        if number:
            # A template may refuse a conversation that ends there.
            with suppress(RowRejectedError):
                row_template = template.for_row(example.variables, example.documents)
                prompt = row_template.render(messages[:number], example.tools, add_generation_prompt=True)
        yield _Turn(document, number, number < len(before), prompt)
