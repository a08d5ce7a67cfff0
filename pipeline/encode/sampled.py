"""Counts what the sampling proof finds in the first look."""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from ...schemas.rows import Example
from ...stages.arrays import view
from ...stages.mask.sampling_proof import prove
from ...stages.tokenize.encode import Encoder
from ...stages.tokenize.encode_counts import Findings
from ...stages.tokenize.preference_tokens import encode_pairs
from .encode_spec import EncodeSpec

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
