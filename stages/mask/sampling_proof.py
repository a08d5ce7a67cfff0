"""The sampling proof: are the trained tokens of a turn those that a model would sample there?

At inference a model gets the messages before its turn, rendered with a generation prompt, and generates until a stop
token. So for every turn of the assistant,

1. the tokens of that prompt alone must be those that stand before the trained ones, and
2. the trained ones must go up to and with the first stop token, and no further.

The proof looks at the tokens that are trained on (a batch of `schemas.rows.ENCODED`) and at prompts that were rendered
and tokenized alone (`tokenize.prompts_alone`). It does not look at text, and knows no template.
"""

from collections.abc import Collection, Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.ragged import begins_of
from ...schemas.rows import ASSISTANT_KINDS
from ..arrays import view
from ..tokenize.prompts_alone import PromptAlone
from ..tokenize.token_runs import IS_NEXT_STOP


class Outcome(StrEnum):
    """What the proof found for one turn. The first that applies is taken."""

    UNPROVED = "unproved"
    """The conversation's turns could not be located, so there is nothing to compare."""
    PREFIX = "prefix_differs"
    """Other tokens stand before the trained ones than a model would be given: the template renders the messages before
    the turn differently once it is there, or refuses them alone."""
    EXACT = "exact"
    """The trained tokens are those that a model would sample."""
    PAST_STOP = "past_stop"
    """A stop token stands within the turn, so a model would not be asked for what follows it."""
    NEXT_HEADER = "stop_in_next_header"
    """No stop token is trained, but the next token is one: it begins the next message's header."""
    MISSING = "stop_missing"
    """No stop token is trained, and none follows."""


class Proof(NamedTuple):
    """What was found for one turn of a batch."""

    document: int
    message: int
    earlier: bool
    """Whether the turn comes before the completion."""
    outcome: Outcome


def outcome_of(
    ids: NDArray[np.int32],
    begin: int,
    end: int,
    prompt: NDArray[np.int32] | None,
    stops: Collection[int],
    after: int | None = None,
) -> Outcome:
    """Compare one turn with what a model would sample.

    Args:
        ids: (T,) all tokens of the conversation.
        begin, end: the turn is `ids[begin:end]`.
        after: one past the token of the next header that may end the turn; None: it is one token.
        prompt: the tokens of the messages before it with a generation prompt; None if the template refuses them.
        stops: ids that end a generation.
    """
    if prompt is None or len(prompt) != begin or not np.array_equal(ids[:begin], prompt):
        return Outcome.PREFIX
    turn = ids[begin:end].tolist()
    first = next((place for place, id in enumerate(turn, 1) if id in stops), 0)
    if first:
        return Outcome.EXACT if first == len(turn) else Outcome.PAST_STOP
    after = min(end + 1, len(ids)) if after is None else after
    return Outcome.NEXT_HEADER if after > end and int(ids[after - 1]) in stops else Outcome.MISSING


def prove(batch: pa.RecordBatch, alone: Iterable[PromptAlone], stops: Collection[int]) -> Iterator[Proof]:
    """Yield a proof for each turn whose prompt was rendered alone.

    Args:
        batch: of `schemas.rows.ENCODED`.
        alone: prompts of turns of its documents.
        stops: ids that end a generation.
    """
    ids, runs = batch.column("input_ids"), batch.column("runs")
    tokens, starts, run_starts = view(ids.values), view(ids.offsets), view(runs.offsets)
    ends, kinds, turns = (view(runs.values.field(name)) for name in ("end", "kind", "turn"))
    begins = begins_of(ends, run_starts)
    said = np.isin(kinds, ASSISTANT_KINDS)
    for document, message, earlier, prompt in alone:
        low, high = run_starts[document], run_starts[document + 1]
        own = np.flatnonzero(said[low:high] & (turns[low:high] == message)) + low
        outcome = Outcome.UNPROVED
        if len(own):
            own = own[: 1 + np.count_nonzero(np.cumprod(np.diff(own) == 1))]  # answers to calls may stand within a turn
            text = tokens[starts[document] : starts[document + 1]]
            follower = own[-1] + 1
            after = int(ends[follower]) if follower < high and IS_NEXT_STOP[kinds[follower]] else None
            outcome = outcome_of(text, int(begins[own[0]]), int(ends[own[-1]]), prompt, stops, after)
        yield Proof(document, message, earlier, outcome)
