"""What differs between two finished datasets: what their manifests say, and their examples, one by one.

The first dataset is A, the second B. Examples are compared by digests of their documents, which depend neither on the
order of rows nor on where they end: sums over tokens, each mixed with its place in its document. N documents take about
100 bytes each.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ...schemas.arrays import view
from ...schemas.dataset.manifest import Manifest
from ...schemas.dataset.names import DOCUMENT_TABLE
from ...schemas.errors import InputError, IntegrityError
from ...schemas.escape import escape_line, without_secrets
from ...schemas.fingerprint import GOLDEN, mix
from ...schemas.notebook import Shown, Table
from ...schemas.ragged import starts_of
from ...schemas.rows import IGNORE_INDEX
from ...schemas.tables.columns import UNPADDED
from ...schemas.units import plural, share
from ..dataset.open_dataset import Finished, open_dataset
from ..dataset.output_folder import Change, Figures, all_there, changes, flat, plan_figures
from ..observer import Observer
from .collect import packing_of
from .grid import Grid, Lines
from .ledger_lines import ledger_words

NAMED = 20
"""Examples of each kind that are named."""
KINDS = {
    "only_a": "only in A",
    "only_b": "only in B",
    "tokens": "in both, with other tokens",
    "labels": "in both, with other labels",
    "copies": "in both, packed a different number of times",
    "moved": "in both, in another split",
}
"""The ways in which an example can differ."""
MOST, FIRST = 8, 3
"""Lines of a section that are printed, and examples of a kind that are named, unless all are."""
LONGEST = 60
"""Characters of a value that are printed."""
_FAR = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Examples:
    """Packed examples, matched by id; copies are not counted."""

    same: int
    """In both with the same tokens and the same trained tokens."""
    counts: dict[str, int]
    """By kind; the first four and `same` add up to all examples."""
    named: dict[str, list[str]]
    """Ids of the first examples of each kind. They are untrusted text."""
    alike: int
    """Examples that have the same tokens and as many copies in both, whatever their ids."""


@dataclass(frozen=True, slots=True, repr=False)
class Difference(Shown):
    """Everything that a diff shows."""

    a: str
    b: str
    manifests: tuple[str, str]
    identical: bool
    """Whether the manifests' hashes are equal, and therefore all bytes."""
    changes: list[Change] = field(default_factory=list)
    examples: Examples | None = None
    """None if the datasets are identical."""

    def summary(self) -> str:
        if self.identical:
            return f"{self.a} and {self.b} are the same dataset, byte for byte"
        same = f", {plural(self.examples.same, 'example')} the same" if self.examples is not None else ""
        changed = plural(len(self.changes), "number or setting", "numbers or settings")
        return f"{self.a} (A) and {self.b} (B) differ in {changed}{same}"

    def tables(self) -> Iterator[Table]:
        rows = ((change.section, *_cells(change)) for change in self.changes)
        yield Table("", ("section", "what", "A", "B", "change"), rows)
        if self.examples is not None:
            named = self.examples.named
            kinds = ((KINDS[kind], self.examples.counts[kind], ", ".join(named[kind][:FIRST])) for kind in named)
            yield Table("Examples", ("which", "how many", "the first"), kinds)


def diff(a: str | Path, b: str | Path, *, observer: Observer | None = None) -> Difference:
    """Compare two finished datasets of packed rows, given by their folders or URLs.

    >>> difference = packtrain.diff("packed", "packed-2k")
    >>> difference.identical
    False
    >>> [(change.a, change.b) for change in difference.changes if change.key == "truncate.max_length"]
    [(256, 2048)]

    Raises:
        InputError: a dataset is missing, unfinished or damaged, or has preference pairs.
    """
    observer = observer or Observer()
    sides = [_open(folder) for folder in (a, b)]
    names = without_secrets(str(a)), without_secrets(str(b))
    one, other = (side.manifest for side in sides)
    hashes = one.hash, other.hash
    if hashes[0] == hashes[1]:
        return Difference(*names, hashes, identical=True)
    changed = changes(_figures(one), _figures(other))
    rows = [shard for each in (one, other) for split in each.splits.values() for shard in split.shards]
    observer.begin("compare", sum(shard.tokens for shard in rows), "tok")
    try:
        left, right = (_documents(side, observer) for side in sides)
    except IntegrityError as error:
        raise InputError(str(error)) from error
    observer.end()
    examples = _compared(left, right, (list(one.splits), list(other.splits)))
    return Difference(*names, hashes, False, changed, examples)


def _open(folder: str | Path) -> Finished:
    try:
        dataset = open_dataset(folder)
    except IntegrityError as error:
        raise InputError(str(error)) from error
    if not all_there(dataset.store, dataset.manifest):
        raise InputError(
            f"{folder} is damaged: files that its manifest names are missing, or have another size; "
            "`packtrain verify` says which, `packtrain verify --repair` rebuilds them"
        )
    if dataset.manifest.preference:
        raise InputError(f"{folder} has preference pairs; only datasets of packed rows can be compared")
    return dataset


# Figures of manifests


def _figures(manifest: Manifest) -> Figures:
    """What a manifest says of its plan, its ledger and its rows."""
    entries = {name: asdict(entry) for name, entry in manifest.ledger.sources.items()}
    if len(entries) > 1:
        entries = {"*": asdict(manifest.ledger.total()), **entries}
    splits = {one.split: asdict(one) for one in packing_of(manifest).splits}
    return {
        **plan_figures(manifest.plan),
        "ledger": {key: value for key, value in flat(entries).items() if value},
        "rows": {key: value for key, value in flat(splits).items() if not key.endswith(".split")},
    }


# Digests of documents


@dataclass(frozen=True, slots=True)
class _Documents:
    """The packed documents of a dataset, in the order of documents.parquet."""

    ids: pa.Array
    """(N,) as `source/file:line`, from data."""
    tokens: NDArray[np.int64]
    """(N,) tokens of one copy in the rows, without padding."""
    copies: NDArray[np.int64]
    split: NDArray[np.int64]
    """(N,) place of the split in the manifest."""
    digests: NDArray[np.uint64]
    """(2, N) sums over all copies: of tokens, and of trained tokens."""


def _documents(dataset: Finished, observer: Observer) -> _Documents:
    """Read the packed documents of a dataset.

    Raises:
        IntegrityError: a file is missing or damaged, or the rows have a document that documents.parquet lacks.
    """
    table = dataset.documents(["doc_id", "id", "tokens"])
    doc_ids, lengths = (view(table[name].combine_chunks()).astype(np.int64) for name in ("doc_id", "tokens"))
    ids, count = table["id"].cast(pa.large_string()).combine_chunks(), len(doc_ids)
    tokens, copies, split = (np.zeros(count, np.int64) for _ in range(3))
    sums, first = np.zeros((2, count), np.uint64), np.full(count, _FAR)
    for number, record in enumerate(dataset.manifest.splits.values()):
        for shard in record.shards:
            for rows in dataset.sound_batches(shard):
                flat = {name: view(rows.column(name).flatten()) for name in rows.schema.names}
                there = flat["seq_lengths"] > 0
                owners = flat["doc_ids"][there]
                sizes, starts = (flat[name][there].astype(np.int64) for name in ("seq_lengths", "doc_starts"))
                at = np.searchsorted(doc_ids, owners)
                if not np.array_equal(doc_ids[np.minimum(at, count - 1)] if count else doc_ids, owners):
                    raise IntegrityError(
                        f"{dataset.store.url} has documents in its rows that {DOCUMENT_TABLE} does not list; run "
                        "packtrain verify"
                    )
                # Where padding begins in the document; without `pack.parallel`, after its last token if at all.
                ends = flat[UNPADDED][there].astype(np.int64) + starts if UNPADDED in flat else lengths[at]
                places = flat["position_ids"].astype(np.int64) + np.repeat(starts, sizes)
                real = places < np.repeat(ends, sizes)
                words = mix(
                    (flat["input_ids"].astype(np.uint64) | (places.astype(np.uint64) << np.uint64(32))) * GOLDEN
                )
                begins = starts_of(sizes)
                for total, flags in zip(sums, (real, real & (flat["labels"] != IGNORE_INDEX)), strict=True):
                    np.add.at(total, at, np.add.reduceat(np.where(flags, words, np.uint64(0)), begins))
                np.add.at(tokens, at, np.add.reduceat(real, begins, dtype=np.int64))
                # Every copy has one piece that starts first, by which copies are counted.
                before = first[at]
                np.minimum.at(first, at, starts)
                copies[at[first[at] < before]] = 0
                np.add.at(copies, at[starts == first[at]], 1)
                split[at] = number
            observer.advance(shard.tokens, rows=shard.rows, tokens=shard.tokens)
    return _Documents(ids, tokens // np.maximum(copies, 1), copies, split, sums)


# Examples


def _compared(a: _Documents, b: _Documents, splits: tuple[list[str], list[str]]) -> Examples:
    """Match the examples of A with those of B by their ids."""
    found = view(pc.fill_null(pc.index_in(a.ids, value_set=b.ids), -1)).astype(np.int64)
    here = np.flatnonzero(found >= 0)
    there = found[here]
    alone_a, alone_b = np.flatnonzero(found < 0), np.delete(np.arange(len(b.ids)), there)
    # The sums are over all copies, so each is taken as often as the other side has copies.
    mine, yours = (
        a.digests[:, here] * b.copies[there].astype(np.uint64),
        b.digests[:, there] * a.copies[here].astype(np.uint64),
    )
    tokens = (a.tokens[here] != b.tokens[there]) | (mine[0] != yours[0])
    labels = ~tokens & (mine[1] != yours[1])
    names = [*splits[0], *(name for name in splits[1] if name not in splits[0])]
    theirs = np.array([names.index(name) for name in splits[1]], np.int64)
    masks = {"tokens": tokens, "labels": labels, "copies": a.copies[here] != b.copies[there]}
    masks["moved"] = a.split[here] != theirs[b.split[there]]
    places = {"only_a": (a, alone_a), "only_b": (b, alone_b), **{kind: (a, here[mask]) for kind, mask in masks.items()}}
    return Examples(
        same=int((~tokens & ~labels).sum()),
        counts={kind: len(places[kind][1]) for kind in KINDS},
        named={kind: side.ids.take(at[:NAMED]).to_pylist() for kind, (side, at) in places.items() if len(at)},
        alike=_alike(a.digests[0], b.digests[0]),
    )


def _alike(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> int:
    """Count the digests of A that can be paired with an equal one of B."""
    mine, yours = (np.unique(side, return_counts=True) for side in (a, b))
    _, one, other = np.intersect1d(mine[0], yours[0], assume_unique=True, return_indices=True)
    return int(np.minimum(mine[1][one], yours[1][other]).sum())


# In the terminal


def difference_lines(everything: bool, found: Difference) -> Lines:
    """A table for each section, and the examples that differ.

    Args:
        everything: all changes, not about a screen.
    """
    if found.identical:
        yield f"A and B are the same dataset, byte for byte: manifest {found.manifests[0][:16]}"
        return
    for side, where, manifest in zip("AB", (found.a, found.b), found.manifests, strict=True):
        yield f"{side}: {where}, manifest {manifest[:16]}"
    left = 0
    for section in dict.fromkeys(change.section for change in found.changes):
        changes = [change for change in found.changes if change.section == section]
        shown = changes if everything else changes[:MOST]
        left += len(changes) - len(shown)
        yield ""
        yield Grid("", (section, "A", "B", "change"), [_cells(one) for one in shown])
    if found.examples is not None:
        yield from _example_lines(found.examples, None if everything else FIRST)
    if left:
        yield f"\n{left:,} more differ; --all shows them"


def _cells(one: Change) -> list[str]:
    """Key, both values, and the change of a number as `▲ +53 (+378.6 %)`."""
    said = [ledger_words(one.key) if one.section == "ledger" else one.key, _value(one.a), _value(one.b)]
    a, b = (0 if side is None else side for side in (one.a, one.b))
    if not all(isinstance(side, int | float) and not isinstance(side, bool) for side in (a, b)):
        return [*said, ""]
    arrow = "▲ +" if b > a else "▼ −"
    relative = f" ({'+' if b > a else '−'}{share(abs(b - a) / a)})" if a and b else ""
    return [*said, f"{arrow}{_value(abs(b - a))}{relative}"]


def _value(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
    text = str(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _example_lines(examples: Examples, most: int | None) -> Iterator[str]:
    yield f"\n{examples.same:,} examples are the same in both"
    for kind, named in examples.named.items():
        shown = named[:most]
        more = examples.counts[kind] - len(shown)
        listed = ", ".join(map(escape_line, shown)) + (f", and {more:,} more" if more else "")
        yield f"  {examples.counts[kind]:,} {KINDS[kind]}: {listed}"
    if examples.alike > examples.same + examples.counts["labels"]:
        yield f"  {examples.alike:,} have the same tokens in both, whatever their ids"
