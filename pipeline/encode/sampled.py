"""Counts what the sampling proof finds in a block."""

from collections import Counter
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

import pyarrow as pa

from ...stages.arrays import view
from ...stages.mask.sampling_proof import Outcome, prove
from ...stages.tokenize.encode_counts import EncodeCounts
from ...stages.tokenize.prompts_alone import PromptAlone

if TYPE_CHECKING:
    from ...schemas.config.mask import MaskConfig

SAMPLED, EARLIER = "turns_sampled", "turns_sampled_earlier"
"""The kinds of turns of completions, and of those before; see `EncodeCounts.found`. Names are outcomes, and details the
numbers of messages."""


def count_turns(
    counts: EncodeCounts, batch: pa.RecordBatch, alone: Iterable[PromptAlone], stops: Collection[int]
) -> None:
    """Prove the turns of a batch; see `prove`."""
    lines, subs = view(batch.column("line")), view(batch.column("sub"))
    for document, message, earlier, outcome in prove(batch, alone, stops):
        place = int(lines[document]), int(subs[document])
        counts.add(EARLIER if earlier else SAMPLED, outcome.value, *place, str(message + 1))


def kinds_tried(mask: "MaskConfig") -> tuple[str, ...]:
    """The kinds of turns that a mask's policy trains. `all` trains headers too, so nothing is compared."""
    return {"all": (), "assistant": (SAMPLED, EARLIER)}.get(mask.policy, (SAMPLED,))


def sampled_turns(counts: EncodeCounts, mask: "MaskConfig") -> Counter[str]:
    """The outcomes of the turns that a mask's policy trains.

    With `stop: auto`, a turn is exact if its stop token stands in the next header.
    """
    found = Counter[str]()
    for kind in kinds_tried(mask):
        found.update(counts.found.get(kind, {}))
    if mask.stop == "auto" and mask.train_end and found[Outcome.NEXT_HEADER]:
        found[Outcome.EXACT] += found.pop(Outcome.NEXT_HEADER)
    return found
