"""The task of comparing: one block of training data → its hits, in the cache."""

import gc
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec

from ...schemas.errors import InputError
from ...schemas.fingerprint import fingerprint
from ...schemas.jsontext import decode_note
from ...stages.overlap.examples import ExampleHit, search_examples
from ...stages.overlap.words import Pieces, excerpt
from ...stages.prep import Options
from ..inputs.blocks import Block
from ..inputs.elsewhere import InputOrigin
from ..inputs.read import block_examples
from ..store.checksummed import seal, unseal
from ..store.open import Store, StoredFile, scratch_of
from .index_file import EvaluationRows, load_rows

SHOWN = 4
"""Hits of each kind of match that a block shows with both texts."""


class HitTexts(msgspec.Struct, frozen=True, omit_defaults=True):
    """Both texts of a hit, near what they share."""

    example: Pieces
    evaluation: Pieces
    example_cut: bool = False
    """Whether text was left out before or after."""
    evaluation_cut: bool = False


class BlockHit(msgspec.Struct, frozen=True, array_like=True):
    """What one example of a block shares with one evaluation text."""

    line: int
    """The example's row in the block, from 0."""
    sub: int
    """See `schemas.rows.Example`."""
    text: int
    """The evaluation text in the index."""
    match: str
    share: float
    longest: str
    """See `stages.overlap.examples.ExampleHit`."""
    texts: HitTexts | None


class BlockHits(msgspec.Struct, frozen=True):
    """The result for a block."""

    examples: int
    """How many were compared."""
    hits: list[BlockHit]
    """By example, then by evaluation text."""


@dataclass(frozen=True, slots=True)
class OverlapDone:
    """How much a task has read."""

    bytes: int
    rows: int


@dataclass(frozen=True)
class OverlapTask:
    """One block to compare. It is small: names and ranges, but no data."""

    path: Path
    block: Block
    form: tuple[str, Options]
    """Name and options of the format."""
    max_row_bytes: int
    cache: Store
    index: StoredFile
    evaluation: str
    """What the hits depend on besides the block; see `Evaluation.key`."""
    where: tuple[str, str] | None = None
    """See `EncodeTask`."""
    origin: InputOrigin | None = None
    """See `EncodeTask`."""

    @property
    def destination(self) -> Store:
        """The store for the task's record."""
        return self.cache

    @cached_property
    def record(self) -> str:
        """Name of the task's record, which holds the hits."""
        name, options = self.form
        key = fingerprint({
            "block": self.block.hash,
            "format": name,
            "options": msgspec.to_builtins(options.payload()),
            "max_row_bytes": self.max_row_bytes,
            "where": list(self.where or ()),
            "evaluation": self.evaluation,
        })  # fmt: skip
        return f"overlaps/{key[:2]}/{key}.json"

    def run(self) -> OverlapDone:
        """Compare the block and put the hits."""
        gc.disable()  # see encode_block
        try:
            found = compare_block(self)
        finally:
            gc.enable()
        self.cache.replace_bytes(self.record, seal(msgspec.json.encode(found), self.record))
        return OverlapDone(self.block.end - self.block.start, self.block.lines)

    def __str__(self) -> str:
        return f"{self.block.named(self.path)}, compared with evaluation rows"


def compare_block(task: OverlapTask) -> BlockHits:
    """The hits of a block.

    Raises:
        InputError: the file has changed since the scan, or its rows have token ids instead of text.
    """
    search, rows = load_rows(task.cache, task.index)
    scratch = scratch_of(task.cache).root
    where = task.where[0] if task.where is not None else None
    prepared = block_examples(task.path, task.block, task.origin, task.form, task.max_row_bytes, where, scratch)
    examples = prepared.examples
    if any(example.ids is not None for example in examples):
        raise InputError(
            f"{task.path}: its rows have token ids instead of text, and ids cannot be compared with evaluation rows; "
            "leave this source out, or leave out decontaminate"
        )
    found = search_examples(search, examples)
    shown = _shown(found)
    hits = []
    for at, hit in enumerate(found):
        example, texts = examples[hit.example], _texts(hit, rows) if at in shown else None
        hits.append(BlockHit(example.line, example.sub, hit.text, hit.match, hit.share, hit.longest, texts))
    return BlockHits(len(examples), hits)


def read_hits(cache: Store, record: str) -> BlockHits | None:
    """The hits of a block; None if they are missing or damaged."""
    try:
        return decode_note(unseal(cache.read(record), record), BlockHits)
    except msgspec.MsgspecError:
        return None


def _shown(found: Sequence[ExampleHit]) -> set[int]:
    """The places of some hits of each kind of match, those that share the most, of different examples and texts."""
    taken, seen, out = Counter[str](), set[object](), set[int]()
    for at in sorted(range(len(found)), key=lambda at: -sum(one.words for one in found[at].stretches)):
        hit = found[at]
        once = (("text", hit.text, hit.match), ("example", hit.example, hit.match))
        if taken[hit.match] < SHOWN and not seen.intersection(once):
            taken[hit.match] += 1
            seen.update(once)
            out.add(at)
    return out


def _texts(hit: ExampleHit, rows: EvaluationRows) -> HitTexts:
    mine, my_cut = excerpt(hit.part, [(one.first, one.words) for one in hit.stretches])
    theirs, their_cut = excerpt(rows.originals[hit.text].as_py(), [(one.other, one.words) for one in hit.stretches])
    return HitTexts(mine, theirs, my_cut, their_cut)
