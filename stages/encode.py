"""Encode: examples → rendered text → token ids and runs. One rendering and one tokenization per example.

1. Render each example to its text, and know at which character its completion begins.
2. Encode the texts of a batch together (`Engine`), without special tokens.
3. Find the token where each completion begins: the first whose characters reach into it (`spans`).
4. Add what a plain text gets around it from the tokenizer, never twice.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from ..schemas.errors import RowRejectedError
from ..schemas.rows import ENCODED, Example, Kind, Messages
from .arrays import digests as binary
from .arrays import lists, numbers, strings
from .bytelengths import ByteLengths
from .engines import Encoded, Engine
from .render import Renderer
from .spans import locate_boundaries

BATCH_CHARACTERS = 1 << 20
"""Text encoded at once: small enough that its tokens stay in the cache of a core."""
BATCH_EXAMPLES = 4096
TEMPLATE_CHECK = 0xFF
"""One row in 256 is rendered by jinja2 as well as by the traced template."""
ENGINE_CHECK = 0x3FF
"""One text in 1,024 is handed back to be held against the reference tokenizer."""


_TRAINED = (True, True)


@dataclass(frozen=True, slots=True)
class Around:
    """What the tokenizer itself puts around a plain text. Templates write their own, so chats get none of it."""

    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    prefix_text: str = ""
    """The text of `prefix`: where a person wrote it already, it is not added again."""
    suffix_text: str = ""
    eos: str = ""
    """Appended to a text or completion that does not end with it; one token."""


@dataclass(slots=True)
class EncodeCounts:
    """What the ledger wants to know of one block's encoding."""

    examples: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    """Examples that could not be rendered although others of their row could, by reason."""
    tokens: int = 0
    """All tokens, created ones included."""
    end_of_sequence: int = 0
    special: int = 0
    straddles: int = 0
    boundaries: int = 0
    text_bytes: int = 0
    inexact: int = 0
    """Examples whose boundary came from the reference tokenizer's offsets."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """A text and what the engine made of it, to be held against the reference."""

    text: str
    ids: list[int]


@dataclass(slots=True)
class Refused:
    """An example that could not be rendered."""

    line: int
    sub: int
    reason: str
    detail: str


class Encoder:
    """Everything that turns examples into record batches; built once in a worker.

    Args:
        renderer: None where there is no chat template; conversations are then refused row by row.
        table: how many bytes of text each token stands for.
        reference: gives the reference tokenizer, for the few texts whose boundaries only it can find.
    """

    def __init__(
        self,
        engine: Engine,
        renderer: Renderer | None,
        table: ByteLengths,
        around: Around,
        reference: Callable[[], Any],
    ) -> None:
        self.engine = engine
        self.renderer = renderer
        self.table = table
        self.around = around
        self.reference = reference

    def encode(
        self,
        examples: Iterable[Example],
        counts: EncodeCounts,
        refused: list[Refused],
        samples: list[Sampled],
    ) -> Iterator[pa.RecordBatch]:
        """Record batches of `schemas.rows.ENCODED`, in the order of the examples.

        `counts`, `refused` and `samples` are filled as the batches are made.
        """
        batch = _Batch()
        eos = self.around.eos
        for example in examples:
            prompt, completion, text = example.prompt, example.completion, example.text
            flags = _TRAINED
            try:
                if text is not None:
                    start = 0
                elif isinstance(prompt, str):
                    if not isinstance(completion, str):
                        raise RowRejectedError("wrong_type", "the prompt is a text, but the completion is not")
                    text, start = prompt + completion, len(prompt)
                else:
                    flags = train_flags(prompt or [], completion or [])  # type: ignore[arg-type]
                    text, start = self._render(example)
            except RowRejectedError as error:
                refused.append(Refused(example.line, example.sub, error.reason, error.detail))
                continue
            if eos and (prompt is None or isinstance(prompt, str)) and not text.endswith(eos):
                text += eos
                batch.ended += 1
            batch.examples.append(example)
            batch.flags.append(flags)
            batch.texts.append(text)
            batch.starts.append(start)
            batch.characters += len(text)
            if batch.characters >= BATCH_CHARACTERS or len(batch.texts) >= BATCH_EXAMPLES:
                yield self._finish(batch, counts, samples)
                batch = _Batch()
        if batch.texts:
            yield self._finish(batch, counts, samples)

    def _render(self, example: Example) -> tuple[str, int]:
        """A conversation's text, and the character at which its completion begins."""
        if self.renderer is None:
            raise RowRejectedError("no_template", "a conversation needs a chat template")
        check = (example.line * 0x9E3779B1 + example.sub) & TEMPLATE_CHECK == 0
        prompt, completion = example.prompt or [], example.completion or []
        return self.renderer(prompt, completion, example.tools, check)  # type: ignore[arg-type]

    def _finish(self, batch: "_Batch", counts: EncodeCounts, samples: list[Sampled]) -> pa.RecordBatch:
        texts = batch.texts
        ids, offsets = self.engine.encode(texts)
        first, straddles = self._first_tokens(batch, Encoded(ids, offsets), counts)
        hashes = []
        for text, start in zip(texts, batch.starts, strict=True):
            data = text.encode()
            counts.text_bytes += len(data)
            hashes.append(xxhash.xxh3_128_digest(data, seed=start))
        for index, digest in enumerate(hashes):
            if (digest[0] | digest[1] << 8) & ENGINE_CHECK == 0:
                samples.append(Sampled(texts[index], ids[offsets[index] : offsets[index + 1]].tolist()))

        counts.examples += len(texts)
        counts.tokens += len(ids)
        counts.end_of_sequence += batch.ended
        prefix = np.zeros(len(texts), dtype=np.int64)
        if (self.around.prefix or self.around.suffix) and any(plain := batch.plain()):
            before = len(ids)
            ids, offsets, prefix = self._put_around(texts, plain, ids, offsets)
            first = first + prefix
            counts.tokens += len(ids) - before
            counts.special += len(ids) - before

        flags = np.array(batch.flags, dtype=np.bool_)
        runs = _runs(np.diff(offsets), first, prefix, batch.kinds(), batch.turns(), flags)
        arrays = [
            lists(offsets, ids, ENCODED.field("input_ids").type),
            runs,
            strings([example.group for example in batch.examples]),
            binary(hashes, 16),
            numbers(np.array([example.line for example in batch.examples], np.int32)),
            numbers(np.array([example.sub for example in batch.examples], np.int32)),
            numbers(straddles.astype(np.int16)),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=ENCODED)

    def _first_tokens(
        self, batch: "_Batch", encoded: Encoded, counts: EncodeCounts
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """(N,) the token at which each completion begins, and (N,) whether it straddles. 0 where none is asked."""
        starts = np.array(batch.starts, dtype=np.int64)
        asked = starts > 0
        bound_offsets = np.zeros(len(starts) + 1, dtype=np.int64)
        np.cumsum(asked, out=bound_offsets[1:])
        found = locate_boundaries(encoded, self.table, batch.texts, starts[asked], bound_offsets, self.reference)
        first = np.zeros(len(starts), dtype=np.int64)
        first[asked] = found.tokens
        straddles = np.zeros(len(starts), dtype=np.bool_)
        straddles[asked] = found.straddles
        counts.boundaries += int(asked.sum())
        counts.straddles += int(straddles.sum())
        counts.inexact += int((~found.exact & asked).sum())
        return first, straddles

    def _put_around(
        self, texts: list[str], plain: list[bool], ids: NDArray[np.int32], offsets: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
        """The same with the tokenizer's own tokens around plain texts; and (N,) how many stand before each."""
        around = self.around
        left = [
            one and not (around.prefix_text and text.startswith(around.prefix_text))
            for one, text in zip(plain, texts, strict=True)
        ]
        right = [
            one and not (around.suffix_text and text.endswith(around.suffix_text))
            for one, text in zip(plain, texts, strict=True)
        ]
        begin = np.array(left) * len(around.prefix)
        end = np.array(right) * len(around.suffix)
        pieces: list[NDArray[np.int32]] = []
        prefix = np.array(around.prefix, dtype=np.int32)
        suffix = np.array(around.suffix, dtype=np.int32)
        for index, (has_left, has_right) in enumerate(zip(left, right, strict=True)):
            if has_left:
                pieces.append(prefix)
            pieces.append(ids[offsets[index] : offsets[index + 1]])
            if has_right:
                pieces.append(suffix)
        sizes = np.diff(offsets) + begin + end
        out = np.zeros(len(offsets), dtype=np.int64)
        np.cumsum(sizes, out=out[1:])
        return np.concatenate(pieces), out, begin


@dataclass(slots=True)
class _Batch:
    """Rendered examples that wait for the engine."""

    examples: list[Example] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    flags: list[tuple[bool, bool]] = field(default_factory=list)
    characters: int = 0
    ended: int = 0

    def plain(self) -> list[bool]:
        """Whether each is a text, around which the tokenizer puts its own tokens; a template writes them itself."""
        return [one.prompt is None or isinstance(one.prompt, str) for one in self.examples]

    def kinds(self) -> NDArray[np.int8]:
        """What stands after the prompt of each."""
        values = (Kind.COMPLETION if one.text is None else Kind.TEXT for one in self.examples)
        return np.fromiter(values, np.int8, len(self.examples))

    def turns(self) -> NDArray[np.int64]:
        """Which message the completion of each begins with; a plain completion counts as the second."""
        values = (len(one.prompt) if isinstance(one.prompt, list) else 1 for one in self.examples)
        return np.fromiter(values, np.int64, len(self.examples))


def _runs(
    lengths: NDArray[np.int64],
    first: NDArray[np.int64],
    prefix: NDArray[np.int64],
    kinds: NDArray[np.int8],
    turns: NDArray[np.int64],
    flags: NDArray[np.bool_],
) -> pa.ListArray:
    """Up to three runs a document: what the tokenizer added before, the prompt, the rest. Empty runs are left out.

    Args:
        flags: (N, 2) the person's train flags of prompt and rest.
    """
    count = len(lengths)
    ends = np.stack([prefix, np.maximum(first, prefix), lengths], axis=1)
    begins = np.stack([np.zeros_like(prefix), ends[:, 0], ends[:, 1]], axis=1)
    keep = ends > begins
    keep[:, 2] |= ~keep.any(axis=1)  # an empty document still has one run, so that every document has
    kind = np.empty((count, 3), dtype=np.int8)
    kind[:, 0] = Kind.SPECIAL
    kind[:, 1] = Kind.PROMPT
    kind[:, 2] = kinds
    turn = np.zeros((count, 3), dtype=np.int16)
    turn[:, 2] = np.where(kinds == Kind.TEXT, 0, np.minimum(turns, np.iinfo(np.int16).max))
    offsets = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(keep.sum(axis=1), out=offsets[1:])
    train = np.ones((count, 3), dtype=np.bool_)
    train[:, 1:] = flags
    structs = pa.StructArray.from_arrays(
        [
            numbers(ends[keep].astype(np.int32)),
            numbers(kind[keep]),
            numbers(turn[keep]),
            numbers(train[keep]),
        ],
        fields=list(ENCODED.field("runs").type.value_type),
    )
    return lists(offsets, structs, ENCODED.field("runs").type)


def train_flags(prompt: Messages, completion: Messages) -> tuple[bool, bool]:
    """What the person's `train` flags say of the prompt and of the completion; True where they say nothing.

    The prompt is one run: a single `train: false` in it takes all of it out, so that what was taken out is never
    trained. In the completion the flags must agree.

    Raises:
        RowRejectedError: `train_flags`, when they do not.
    """
    asked = [message.get("train") is not False for message in completion]
    if len(set(asked)) > 1:
        raise RowRejectedError(
            "train_flags", "some messages of the completion say `train: false` and others do not; split the row"
        )
    return all(message.get("train") is not False for message in prompt), all(asked)


def differing(reference: Engine, samples: Sequence[Sampled]) -> Sampled | None:
    """The first sample that the reference encodes otherwise, or None."""
    if not samples:
        return None
    ids, offsets = reference.encode([sample.text for sample in samples])
    for index, sample in enumerate(samples):
        if ids[offsets[index] : offsets[index + 1]].tolist() != sample.ids:
            return sample
    return None
