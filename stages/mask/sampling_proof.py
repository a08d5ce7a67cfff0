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
    asked: list[tuple[int, int, bool]] = []
    prompts: list[str | None] = []
    made = {(one.line, one.sub): one for one in examples}
    places = list(zip(batch["line"].to_pylist(), batch["sub"].to_pylist(), strict=True))
    for document, place in enumerate(places):
        example = made[place]
        before, after = example.prompt or [], example.completion or []
        messages = [] if isinstance(before, str) or isinstance(after, str) else [*before, *after]
        for at, one in enumerate(messages):
            if one["role"] != ASSISTANT or not loss_weight(one):
                continue
            asked.append((document, at, at < len(before)))
            prompts.append(None)
            with suppress(RowRejectedError):
                if at:
                    for_row = template.for_row(example.variables, example.documents)
                    prompts[-1] = for_row.render(messages[:at], example.tools, add_generation_prompt=True)
    if not prompts:
        return
    alone = engine.encode([prompt or "" for prompt in prompts]).each()

    ids, spans = batch.column("input_ids"), batch.column("spans")
    tokens, starts, span_starts = view(ids.values), view(ids.offsets), view(spans.offsets)
    ends, kinds, turns = (view(spans.values.field(name)) for name in ("end", "kind", "turn"))
    begins = begins_of(ends, span_starts)
    is_turn = np.isin(kinds, ASSISTANT_KINDS)
    for (document, message, earlier), prompt, prompt_ids in zip(asked, prompts, alone, strict=True):
        low, high = span_starts[document], span_starts[document + 1]
        own = np.flatnonzero(is_turn[low:high] & (turns[low:high] == message)) + low
        if not len(own):
            continue
        own = own[: 1 + np.count_nonzero(np.cumprod(np.diff(own) == 1))]  # answers to calls may stand within a turn
        text, begin, last = tokens[starts[document] : starts[document + 1]], int(begins[own[0]]), own[-1]
        last += last + 1 < high and IS_NEXT_STOP[kinds[last + 1]]
        if prompt is None or not np.array_equal(text[:begin], prompt_ids):
            outcome = Outcome.PREFIX
        else:
            outcome = Outcome.MISSING if stops.isdisjoint(text[begin : ends[last]].tolist()) else Outcome.EXACT
        yield Proof(*places[document], message, earlier, outcome)
