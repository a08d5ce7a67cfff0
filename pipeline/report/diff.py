"""What differs between two finished datasets: what their manifests say, and their examples, one by one.

The first dataset is A, the second B. Examples are compared by the document tables: by the digest of the text, and by
which of its tokens are kept and trained. No row is read. So two examples are the same even if rows cut them into pieces
at other places, where each further piece loses its first label. N documents take about 150 bytes each.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ...schemas.arrays import numbers, view
from ...schemas.dataset.manifest import Manifest
from ...schemas.errors import InputError, IntegrityError
from ...schemas.escape import escape_line, without_secrets
from ...schemas.fingerprint import GOLDEN, mix
from ...schemas.notebook import Shown, Table
from ...schemas.rows import PACKED_OUTCOME
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
"""Kind → the ways in which an example can differ, in words."""
SECTION_LINES = 8
"""Lines of a section that are printed, unless all are."""
NAMED_IN_TERMINAL = 3
"""Examples of a kind that are named in a terminal, unless all are."""
VALUE_CHARACTERS = 60
"""Characters of a value that are printed."""
_TOKENS = ("tokens", "tokens_kept", "kept_digest")
"""Columns of the document table: of two examples with the same text, they are equal if the same tokens are kept."""
_LABELS = ("tokens_trained", "trained_digest")
"""Columns: of two examples with the same kept tokens, they are equal if the same of these are trained."""


@dataclass(frozen=True, slots=True)
class Examples:
    """Packed examples, matched by id; copies are not counted."""

    same: int
    """In both with the same tokens and the same trained tokens."""
    counts: dict[str, int]
    """Kind → how many. `same` and the first four kinds add up to all examples of A and B, those in both counted once;
    an example of the last two kinds is also one of the others."""
    named: dict[str, list[str]]
    """Kind → ids of its first examples, of the kinds that have any. Ids are untrusted text."""
    alike: int
    """Examples that have the same tokens and as many copies in both, whatever their ids; 0 if the tokenizers differ."""
    same_tokenizer: bool = True
    """Whether both have the same tokenizer and encoding. If not, all examples that are in both are of kind `tokens`."""


@dataclass(frozen=True, slots=True, repr=False)
class Difference(Shown):
    """Everything that a diff shows."""

    a: str
    """Folder or URL of A."""
    b: str
    """Folder or URL of B."""
    manifests: tuple[str, str]
    """The hashes of both manifests."""
    identical: bool
    """Whether the manifests' hashes are equal, and therefore all bytes."""
    changes: list[Change] = field(default_factory=list)
    """Numbers and settings of the manifests that differ."""
    examples: Examples | None = None
    """None if the datasets are identical."""

    def summary(self) -> str:
        if self.identical:
            return f"{self.a} and {self.b} are the same dataset, byte for byte"
        same = f", {plural(self.examples.same, 'example')} the same" if self.examples is not None else ""
        changed = plural(len(self.changes), "number or setting", "numbers or settings")
        return f"{self.a} (A) and {self.b} (B) differ in {changed}{same}"

    def tables(self) -> Iterator[Table]:
        changes = [(change.section, *_cells(change)) for change in self.changes]
        yield Table("", ("section", "what", "A", "B", "change"), changes)
        if self.examples is not None:
            counts = self.examples.counts
            kinds = [
                (KINDS[kind], counts[kind], ", ".join(ids[:NAMED_IN_TERMINAL]))
                for kind, ids in self.examples.named.items()
            ]
            yield Table("Examples", ("which", "how many", "the first"), kinds)


def diff(a: str | Path, b: str | Path, *, observer: Observer | None = None) -> Difference:
    """Compare two finished datasets of packed rows, given by their folders or URLs.

    >>> difference = packtrain.diff("packed", "packed-2k")
    >>> difference.identical
    False
    >>> [(change.a, change.b) for change in difference.changes if change.key == "truncate.max_length"]
    [(256, 2048)]

    Raises:
        InputError: a dataset is missing, unfinished or damaged, or has preference pairs that are not packed.
    """
    observer = observer or Observer()
    dataset_a = _open(a)
    dataset_b = _open(b)
    name_a = without_secrets(str(a))
    name_b = without_secrets(str(b))
    left = dataset_a.manifest
    right = dataset_b.manifest
    hashes = (left.hash, right.hash)
    if left.hash == right.hash:
        return Difference(name_a, name_b, hashes, identical=True)
    # Before the documents are read, which takes longer: a manifest whose plan packtrain did not write is refused here.
    changed = changes(_figures(left), _figures(right))
    observer.begin("compare", 0, "")  # 0: how much work there is is unknown
    try:
        documents_a = _documents(dataset_a)
        documents_b = _documents(dataset_b)
    except IntegrityError as error:
        raise InputError(str(error)) from error
    observer.end()
    same_tokenizer = _encoding_of(left) == _encoding_of(right)
    examples = _compared(documents_a, documents_b, same_tokenizer=same_tokenizer)
    return Difference(name_a, name_b, hashes, identical=False, changes=changed, examples=examples)


def _open(folder: str | Path) -> Finished:
    """A finished dataset of packed rows.

    Raises:
        InputError: it is something else, or damaged.
    """
    try:
        dataset = open_dataset(folder)
    except IntegrityError as error:
        raise InputError(str(error)) from error
    # By their sizes alone: reading all bytes takes minutes, and only the document table is read here.
    if not all_there(dataset.store, dataset.manifest):
        raise InputError(
            f"{folder} is damaged: files that its manifest names are missing, or have another size; "
            "`packtrain verify` says which, `packtrain verify --repair` rebuilds them"
        )
    if dataset.manifest.has_unpacked_pairs:
        raise InputError(
            f"{folder} has preference pairs that are not packed (pack.strategy none); only packed rows can be compared"
        )
    return dataset


def _encoding_of(manifest: Manifest) -> tuple[Any, Any]:
    """What decides the tokens of a text: the tokenizer, and the version of the encoding."""
    return manifest.plan["tokenizer"]["hash"], manifest.plan["encode"]["format"]


# Figures of manifests


def _figures(manifest: Manifest) -> Figures:
    """Section → key → value: what a manifest says of its plan, its ledger and its rows."""
    entries = {name: asdict(entry) for name, entry in manifest.ledger.sources.items()}
    if len(entries) > 1:
        # First, so that the sum is among the lines that a terminal shows.
        entries = {"*": asdict(manifest.ledger.total()), **entries}
    splits = {figures.split: asdict(figures) for figures in packing_of(manifest).splits}
    # Counters of 0 are left out of the ledger, which has a hundred. The name of a split is in its keys already.
    return {
        **plan_figures(manifest.plan),
        "ledger": {key: value for key, value in flat(entries).items() if value},
        "rows": {key: value for key, value in flat(splits).items() if not key.endswith(".split")},
    }


# Packed documents


@dataclass(frozen=True, slots=True)
class _Documents:
    """The packed documents of a dataset, in the order of its document table."""

    ids: pa.Array
    """(N,) as `source/file:line`, from data."""
    splits: pa.Array
    """(N,) the split of each, as text."""
    copies: NDArray[np.int32]
    """(N,) how often each is packed."""
    token_identity: NDArray[np.uint64]
    """(5, N) equal columns mean the same packed tokens: both halves of the digest of the text, its tokens, how many of
    these are kept, and a digest of which."""
    label_identity: NDArray[np.uint64]
    """(2, N) of documents with the same packed tokens, equal columns mean the same labels: how many tokens are trained,
    and a digest of which."""


def _documents(dataset: Finished) -> _Documents:
    """Read the packed documents of a dataset.

    Raises:
        IntegrityError: documents.parquet is missing or damaged.
    """
    columns = ["id", "split", "copies", "digest", *_TOKENS, *_LABELS]
    # Only rows whose outcome is this one.
    table = dataset.documents(columns, {"outcome": [PACKED_OUTCOME]}).combine_chunks()
    arrays = {name: column.combine_chunks() for name, column in zip(table.column_names, table.columns, strict=True)}
    digests = arrays["digest"]
    halves = np.zeros((0, 2), np.uint64)
    if len(digests):
        # The buffer has 16 bytes for each digest, and the array may be a slice of it: from digest `offset` on.
        halves = np.frombuffer(digests.buffers()[1], np.uint64).reshape(-1, 2)
        halves = halves[digests.offset : digests.offset + len(digests)]
    tokens = [halves[:, 0], halves[:, 1]]
    tokens += [view(arrays[name]).astype(np.uint64) for name in _TOKENS]
    labels = [view(arrays[name]).astype(np.uint64) for name in _LABELS]
    return _Documents(
        # Ids of many documents are more than the 2 GiB of text that an array with 32-bit offsets can hold.
        ids=arrays["id"].cast(pa.large_string()),
        splits=arrays["split"],
        copies=view(arrays["copies"]),
        token_identity=np.stack(tokens),
        label_identity=np.stack(labels),
    )


# Examples


def _compared(a: _Documents, b: _Documents, *, same_tokenizer: bool) -> Examples:
    """Match the examples of A with those of B by their ids.

    Args:
        same_tokenizer: whether equal texts have equal tokens in both.
    """
    # Of A with the ids x y z and B with z x: 1 −1 0.
    place_in_b = view(pc.fill_null(pc.index_in(a.ids, value_set=b.ids), -1)).astype(np.int64)
    # The examples in both: 0 2 of A are 1 0 of B.
    in_a = np.flatnonzero(place_in_b >= 0)
    in_b = place_in_b[in_a]
    # Digests are of texts and say nothing of tokens if tokenizers differ: all examples then count as different.
    tokens_differ = np.ones(len(in_a), np.bool_)
    if same_tokenizer:
        tokens_differ = (a.token_identity[:, in_a] != b.token_identity[:, in_b]).any(axis=0)
    # Of other tokens the labels are others anyway, so an example counts once.
    labels_differ = ~tokens_differ & (a.label_identity[:, in_a] != b.label_identity[:, in_b]).any(axis=0)
    moved = pc.not_equal(a.splits.take(numbers(in_a)), b.splits.take(numbers(in_b))).to_pylist()
    # Kind → where such examples are: in B for those that are only there, else in A.
    places = {
        "only_a": np.flatnonzero(place_in_b < 0),
        "only_b": np.delete(np.arange(len(b.ids)), in_b),  # all of B but those in both
        "tokens": in_a[tokens_differ],
        "labels": in_a[labels_differ],
        "copies": in_a[a.copies[in_a] != b.copies[in_b]],
        "moved": in_a[np.array(moved, np.bool_)],
    }
    named: dict[str, list[str]] = {}
    for kind, where in places.items():
        if len(where):
            ids = b.ids if kind == "only_b" else a.ids
            named[kind] = ids.take(numbers(where[:NAMED])).to_pylist()
    return Examples(
        same=int((~tokens_differ & ~labels_differ).sum()),
        counts={kind: len(places[kind]) for kind in KINDS},
        named=named,
        alike=_count_alike(a, b) if same_tokenizer else 0,
        same_tokenizer=same_tokenizer,
    )


def _count_alike(a: _Documents, b: _Documents) -> int:
    """Count the documents of A that can be paired with a document of B with the same tokens and as many copies, even if
    their ids differ, as they do after a file was renamed.
    """
    # Three documents of A and two of B with one key are two pairs.
    left, left_counts = np.unique(_keys(a), return_counts=True)
    right, right_counts = np.unique(_keys(b), return_counts=True)
    _, in_left, in_right = np.intersect1d(left, right, assume_unique=True, return_indices=True)
    return int(np.minimum(left_counts[in_left], right_counts[in_right]).sum())


def _keys(documents: _Documents) -> NDArray[np.uint64]:
    """(N,) a hash of the packed tokens and the copies of each document."""
    keys = documents.copies.astype(np.uint64)
    for numbers_of_documents in documents.token_identity:
        # Multiplied first, so that equal numbers in two places do not cancel out.
        keys = mix(keys * GOLDEN + numbers_of_documents)
    return keys


# In the terminal


def difference_lines(everything: bool, difference: Difference) -> Lines:
    """A table for each section, and the examples that differ.

    Args:
        everything: print all changes and up to `NAMED` ids of each kind, and not only what fits about a screen.
    """
    if difference.identical:
        yield f"A and B are the same dataset, byte for byte: manifest {difference.manifests[0][:16]}"
        return
    yield f"A: {difference.a}, manifest {difference.manifests[0][:16]}"
    yield f"B: {difference.b}, manifest {difference.manifests[1][:16]}"
    lines_left = 0
    for section in dict.fromkeys(change.section for change in difference.changes):
        changes = [change for change in difference.changes if change.section == section]
        shown = changes if everything else changes[:SECTION_LINES]
        lines_left += len(changes) - len(shown)
        yield ""
        yield Grid("", (section, "A", "B", "change"), [_cells(change) for change in shown])
    if difference.examples is not None:
        yield from _example_lines(difference.examples, NAMED if everything else NAMED_IN_TERMINAL)
    if lines_left:
        yield f"\n{lines_left:,} more differ; --all shows them"


def _cells(change: Change) -> list[str]:
    """Key, both values, and the change of a number as `▲ +53 (+378.6 %)`."""
    key = ledger_words(change.key) if change.section == "ledger" else change.key
    cells = [key, _format_value(change.a), _format_value(change.b)]
    # A counter that a side does not have is 0 there.
    a = 0 if change.a is None else change.a
    b = 0 if change.b is None else change.b
    if not _is_number(a) or not _is_number(b):
        return [*cells, ""]
    arrow = "▲" if b > a else "▼"
    sign = "+" if b > a else "−"
    # Of what appears or disappears, a share would say nothing.
    relative = f" ({sign}{share(abs(b - a) / a)})" if a and b else ""
    return [*cells, f"{arrow} {sign}{_format_value(abs(b - a))}{relative}"]


def _is_number(value: Any) -> bool:
    """Whether a value of a manifest is a number, whose change can be computed."""
    return isinstance(value, int | float) and not isinstance(value, bool)  # a bool is an int in Python


def _format_value(value: Any) -> str:
    """A number or a setting, at most `VALUE_CHARACTERS`; a dash where a side has none."""
    if value is None:
        return "–"
    if _is_number(value):
        return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
    text = str(value)
    return text if len(text) <= VALUE_CHARACTERS else f"{text[: VALUE_CHARACTERS - 1]}…"


def _example_lines(examples: Examples, limit: int) -> Iterator[str]:
    """How many examples are the same, and how many differ in each way, of which `limit` are named."""
    if not examples.same_tokenizer:
        yield "\nThe tokenizers differ, so all examples that are in both count as examples with other tokens"
    yield f"\n{examples.same:,} examples are the same in both"
    for kind, ids in examples.named.items():
        count = examples.counts[kind]
        named = [escape_line(id) for id in ids[:limit]]
        if count > len(named):
            named.append(f"and {count - len(named):,} more")
        yield f"  {count:,} {KINDS[kind]}: {', '.join(named)}"
    # Examples with the same id that differ in labels alone have the same tokens, too, and are counted above already.
    if examples.alike > examples.same + examples.counts["labels"]:
        yield f"  {examples.alike:,} have the same tokens in both, whatever their ids"
