"""Counts what the sampling proof finds, in the first look and, with `mask.prove: sampling`, in every block."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from ...schemas.rows import Example
from ...stages.arrays import view
from ...stages.mask.sampling_proof import Outcome, prove
from ...stages.tokenize.encode import Encoder
from ...stages.tokenize.encode_counts import EncodeCounts, Findings
from ...stages.tokenize.preference_tokens import encode_pairs
from .encode_spec import EncodeSpec

if TYPE_CHECKING:
    from ...schemas.config.mask import MaskConfig

SAMPLED, EARLIER = "turns_sampled", "turns_sampled_earlier"
"""The kinds of turns of completions, and of those before; see `EncodeCounts.found`. Names are outcomes, and details the
numbers of messages."""


def encoded_batches(
    encoder: Encoder, spec: EncodeSpec, examples: Iterable[Example], found: Findings, *, pairs: bool
) -> Iterator[pa.RecordBatch]:
    """Encode examples, and count the proofs of their turns if the encoder renders their prompts alone; see `prove`."""
    for batch in encode_pairs(encoder, examples, found) if pairs else encoder.encode(examples, found):
        if found.alone and encoder.renderer is not None:
            stops = spec.stop_tokens(encoder.renderer.stop_tokens).ids
            lines, subs = view(batch.column("line")), view(batch.column("sub"))
            for document, message, earlier, outcome in prove(batch, found.alone, stops):
                place = int(lines[document]), int(subs[document])
                found.counts.add(EARLIER if earlier else SAMPLED, outcome.value, *place, str(message + 1))
            found.alone.clear()
        yield batch


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
