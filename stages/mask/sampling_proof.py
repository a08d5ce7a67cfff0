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
from numpy.typing import NDArray

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
    the turn differently once it is there, or refuses them alone; or no message comes before the turn."""
    MISSING = "stop_missing"
    """No stop token ends the turn."""


class Proof(NamedTuple):
    """What was found for one turn of a batch."""

    line: int
    """The row of the document in its block."""
    sub: int
    """The number of the example in that row, or -1 if it is the only one."""
    message: int
    """The number of the turn among the messages, from 0."""
    earlier: bool
    """Whether the turn comes before the completion."""
    outcome: Outcome


class _Turn(NamedTuple):
    """A turn of the assistant that is trained."""

    document: int
    """The place of its document in the batch."""
    message: int
    """Its number among the messages, from 0."""
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
        examples: all examples of the batch. Others may be among them, such as those that could not be encoded.
        stops: ids that end a generation.

    Raises:
        TemplateError: the template uses what changes between runs, such as today's date.
    """
    turns = list[_Turn]()
    example_at = {(example.line, example.sub): example for example in examples}
    places = list(zip(batch["line"].to_pylist(), batch["sub"].to_pylist(), strict=True))
    for document, place in enumerate(places):
        turns += _trained_turns(document, example_at[place], template)
    if not turns:
        return
    # Together, because an engine takes longer for many calls than for many texts.
    ids_of_prompts = engine.encode([turn.prompt or "" for turn in turns]).per_text()
    located_turns = _LocatedTurns(batch)
    for turn, prompt_ids in zip(turns, ids_of_prompts, strict=True):
        located = located_turns.tokens_of(turn)
        if located is None:
            continue
        tokens_before, tokens_in_turn = located
        if turn.prompt is None or not np.array_equal(tokens_before, prompt_ids):
            outcome = Outcome.PREFIX
        elif stops.isdisjoint(tokens_in_turn.tolist()):
            outcome = Outcome.MISSING
        else:
            outcome = Outcome.EXACT
        line, sub = places[turn.document]
        yield Proof(line, sub, turn.message, turn.is_earlier, outcome)


class _LocatedTurns:
    """The tokens of a batch, by turn.

    Args:
        batch: of `schemas.rows.ENCODED`.
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        ids = batch.column("input_ids")
        spans = batch.column("spans")
        self._tokens = view(ids.values)
        self._token_starts = view(ids.offsets)
        self._span_starts = view(spans.offsets)
        self._ends = view(spans.values.field("end"))
        self._kinds = view(spans.values.field("kind"))
        self._messages = view(spans.values.field("turn"))
        self._begins = begins_of(self._ends, self._span_starts)
        self._is_assistant = np.isin(self._kinds, ASSISTANT_KINDS)

    def tokens_of(self, turn: _Turn) -> tuple[NDArray[np.int32], NDArray[np.int32]] | None:
        """The tokens of its document before a turn, and the tokens of the turn, with a stop token in the header after
        it. None if the turn was not located.
        """
        first_span = self._span_starts[turn.document]
        last_span = self._span_starts[turn.document + 1] - 1
        in_document = slice(first_span, last_span + 1)
        is_in_turn = self._is_assistant[in_document] & (self._messages[in_document] == turn.message)
        spans = np.flatnonzero(is_in_turn) + first_span
        if not len(spans):
            return None
        # Indices of spans may have a gap: answers to calls may stand within a turn, which is proved up to the first of
        # them. Of the spans 4, 5 and 8, `is_neighbour` is 1 0, with one 1 before the first 0, so the last span is
        # spans[1] = 5.
        is_neighbour = np.diff(spans) == 1
        end_span = spans[np.count_nonzero(np.cumprod(is_neighbour))]
        if end_span < last_span and IS_NEXT_STOP[self._kinds[end_span + 1]]:
            end_span += 1
        begin = self._begins[spans[0]]
        end = self._ends[end_span]
        tokens = self._tokens[self._token_starts[turn.document] : self._token_starts[turn.document + 1]]
        return tokens[:begin], tokens[begin:end]


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
        if number > 0:
            # A template may refuse a conversation that ends there.
            with suppress(RowRejectedError):
                row_template = template.for_row(example.variables, example.documents)
                prompt = row_template.render(messages[:number], example.tools, add_generation_prompt=True)
        yield _Turn(document, number, number < len(before), prompt)
