"""The task of comparing: one block of training data → its hits, in the cache."""

import gc
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ...schemas.errors import InputError
from ...schemas.fingerprint import fingerprint
from ...schemas.jsontext import decode_note
from ...schemas.rows import Example
from ...stages.overlap.examples import ExampleHit, search_examples
from ...stages.overlap.pieces import Pieces, excerpt
from ...stages.prep import Options
from ..inputs.blocks import Block
from ..inputs.fetch import InputOrigin
from ..inputs.read import block_examples
from ..store.checksummed import seal, unseal
from ..store.open import Store, StoredFile, scratch_of
from .index_file import EvaluationRows, load_rows

SHOWN = 4
"""Hits of each kind of match that a block shows with both texts."""


class BlockHit(msgspec.Struct, frozen=True, array_like=True):
    """What one example of a block shares with one evaluation text."""

    line: int
    """The example's row in the block, from 0."""
    sub: int
    """See `schemas.rows.Example`."""
    text: int
    """The evaluation text in the index."""
    match: str
    covered: int
    longest: str
    """See `stages.overlap.examples.ExampleHit`."""


class ShownHit(msgspec.Struct, frozen=True):
    """Both texts of a hit, cut to what is near."""

    hit: int
    """Its place in `BlockHits.hits`."""
    example: Pieces
    example_cut: bool
    evaluation: Pieces
    evaluation_cut: bool


class BlockHits(msgspec.Struct, frozen=True):
    """The result for a block."""

    examples: int
    """How many were compared."""
    characters: int
    hits: list[BlockHit]
    """By example, then by evaluation text."""
    shown: list[ShownHit]


@dataclass(frozen=True, slots=True)
class OverlapDone:
    """How much a task has read."""

    bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
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

    _key: str = field(default="", init=False, repr=False, compare=False)

    @property
    def key(self) -> str:
        """The address of the hits in the cache."""
        if not self._key:
            name, options = self.form
            payload = {
                "block": self.block.hash,
                "format": name,
                "options": msgspec.to_builtins(options.payload()),
                "max_row_bytes": self.max_row_bytes,
                "where": list(self.where or ()),
                "evaluation": self.evaluation,
            }
            object.__setattr__(self, "_key", fingerprint(payload))
        return self._key

    @property
    def destination(self) -> Store:
        """The store for the task's record."""
        return self.cache

    @property
    def record(self) -> str:
        """Name of the task's record, which holds the hits."""
        return f"overlaps/{self.key[:2]}/{self.key}.json"

    def run(self) -> "OverlapDone":
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
    rows = load_rows(task.cache, task.index)
    scratch = scratch_of(task.cache).root
    where = task.where[0] if task.where is not None else None
    prepared = block_examples(task.path, task.block, task.origin, task.form, task.max_row_bytes, where, scratch)
    examples = prepared.examples
    if any(example.ids is not None for example in examples):
        raise InputError(
            f"{task.path}: its rows have token ids instead of text, and ids cannot be compared with evaluation rows; "
            "leave this source out, or leave out decontaminate"
        )
    found = search_examples(rows.index, rows.asks, examples)
    hits = [
        BlockHit(examples[one.example].line, examples[one.example].sub, one.text, one.match, one.covered, one.longest)
        for one in found.hits
    ]
    return BlockHits(len(examples), found.characters, hits, _shown(rows, found.hits, examples))


def read_hits(cache: Store, record: str) -> BlockHits | None:
    """The hits of a block; None if they are missing or damaged."""
    try:
        return decode_note(unseal(cache.read(record), record), BlockHits)
    except msgspec.MsgspecError:
        return None


def _shown(rows: EvaluationRows, found: Sequence[ExampleHit], examples: Sequence[Example]) -> list[ShownHit]:
    """Some hits of each kind of match with their texts, those that share the most first."""
    order = sorted(range(len(found)), key=lambda at: -sum(one.words for one in found[at].stretches))
    taken, seen, out = Counter[str](), set[object](), list[ShownHit]()
    for at in order:
        hit = found[at]
        once = ((hit.text, hit.match), (examples[hit.example].line, hit.match))
        if taken[hit.match] >= SHOWN or seen.intersection(once):
            continue
        taken[hit.match] += 1
        seen.update(once)
        mine, my_cut = excerpt(hit.part, [(one.first, one.words) for one in hit.stretches])
        original = rows.originals[hit.text].as_py()
        theirs, their_cut = excerpt(original, [(one.other, one.words) for one in hit.stretches])
        out.append(ShownHit(at, mine, my_cut, theirs, their_cut))
    return sorted(out, key=lambda one: one.hit)
