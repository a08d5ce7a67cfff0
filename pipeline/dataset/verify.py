"""Checks that a finished dataset matches its manifest, and that its rows keep the invariants that trainers rely on.

The invariants of packed rows and of preference pairs are tables: what is wrong, in which rows, in which words.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.errors import IntegrityError
from ...schemas.manifest import FileRecord, Manifest, ShardRecord
from ...schemas.names import MANIFEST
from ...schemas.notebook import Shown, Table
from ...schemas.ragged import offsets_of, ranges, starts_of
from ...schemas.rows import IGNORE_INDEX, UNPADDED, WEIGHTS
from ...schemas.units import plural
from ...stages.arrays import list_lengths, view
from ..observer import Observer
from ..store.open_store import Store
from .open_dataset import Finished, open_dataset

Check = tuple[NDArray[np.bool_], NDArray[np.int64] | None, str]
"""(N,) what is wrong; (N,) the row that each belongs to, or None if there is one for each row; and the words for it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem."""

    where: str
    what: str

    @property
    def name(self) -> str:
        """The file with the problem."""
        return self.where.partition(", row ")[0]

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass(frozen=True, slots=True, repr=False)
class Verification(Shown):
    """What `verify` checked and found."""

    files: int
    rows: int
    tokens: int
    findings: tuple[Finding, ...]

    @property
    def sound(self) -> bool:
        """Whether there are no findings."""
        return not self.findings

    def summary(self) -> str:
        counts = ((self.files, "file"), (self.rows, "row"), (self.tokens, "token"))
        checked = ", ".join(plural(number, what) for number, what in counts)
        return f"{'sound' if self.sound else plural(len(self.findings), 'finding')} in {checked}"

    def tables(self) -> Iterator[Table]:
        if self.findings:
            yield Table("", ("where", "what"), ((finding.where, finding.what) for finding in self.findings))


def verify(folder: str | Path, *, deep: bool = False, observer: Observer | None = None) -> Verification:
    """Check a dataset: every row's invariants, sizes and counts; with `deep`, every byte against its hash.

    >>> packtrain.verify("packed", deep=True).sound
    True

    Raises:
        InputError: the folder has no finished dataset.
        IntegrityError: the manifest itself is damaged.
    """
    observer = observer or Observer()
    dataset = open_dataset(folder)
    manifest = dataset.manifest
    findings: list[Finding] = []
    try:
        manifest.ledger.check()
    except IntegrityError as error:
        findings.append(Finding(MANIFEST, str(error)))
    if deep and dataset.store.read(MANIFEST) != manifest.to_bytes():
        findings.append(Finding(MANIFEST, "has been reformatted: other bytes with the same content"))
    for file in manifest.files:
        findings += _check_file(dataset.store, file, deep)
    rows = sum(split.rows for split in manifest.splits.values())
    tokens = sum(split.tokens for split in manifest.splits.values())
    weights = 0.0
    observer.begin("verify", tokens, "tok")
    for name, split in manifest.splits.items():
        if not split.shards:
            findings.append(Finding(MANIFEST, f"lists no shards for split {name!r}"))
            continue
        for shard in split.shards:
            found = list(_check_file(dataset.store, shard, deep))
            if not found:
                found, weight = _check_shard(dataset, shard)
                weights += weight
            findings += found
            observer.advance(shard.tokens, rows=shard.rows, tokens=shard.tokens)
    observer.end()
    said = sum(source.weight_trained for source in manifest.ledger.sources.values())
    if not findings and not np.isclose(said, weights, rtol=1e-9, atol=0):
        what = f"the ledger's loss weights add up to {said:.9g}, but those of the shards to {weights:.9g}"
        findings.append(Finding(MANIFEST, what))
    known = {MANIFEST, *(file.name for file in manifest.all_files)}
    if not dataset.store.lists_names:
        observer.note("a web server does not list its files: whether it has others beside the dataset's is not known")
    for name in dataset.store.names() if dataset.store.lists_names else ():
        if name not in known and "shards/" in name and not name.startswith("_run/"):
            findings.append(Finding(name, "is not in the manifest; remove it, because a reader might take it for data"))
    return Verification(len(manifest.all_files), rows, tokens, tuple(findings))


def _check_file(store: Store, record: FileRecord | ShardRecord, deep: bool) -> Iterator[Finding]:
    """Yield what is wrong with a file: its size; with `deep`, its content."""
    actual = store.size(record.name)
    if actual is None:
        yield Finding(record.name, "is missing")
    elif actual != record.bytes:
        yield Finding(record.name, f"has {actual:,} bytes, but the manifest says {record.bytes:,}")
    elif deep:
        found = store.hash(record.name)
        if found is None or found.hash != record.hash:
            yield Finding(record.name, "does not match its hash in the manifest")


def _check_shard(dataset: Finished, shard: ShardRecord) -> tuple[list[Finding], float]:
    """What is wrong with a shard's rows, and the sum of their loss weights."""
    findings: list[Finding] = []
    tokens = trained = max_docs = row = 0
    weight, manifest = 0.0, dataset.manifest
    try:
        for batch in dataset.batches(shard):
            findings += [Finding(f"{shard.name}, row {row + bad}", what) for bad, what in _problems(batch, manifest)]
            row += batch.num_rows
            max_docs = max(max_docs, int(list_lengths(batch.column("doc_ids")).max(initial=0)))
            if manifest.preference:
                prompt, chosen, rejected = _pair_lengths(batch)
                tokens += int((prompt + chosen + rejected).sum())
                trained += int((chosen + rejected - 2 * (prompt == 0)).sum())  # nothing predicts a first token
                continue
            tokens += len(batch.column("input_ids").flatten())
            trained += int(np.count_nonzero(view(batch.column("labels").flatten()) != IGNORE_INDEX))
            if WEIGHTS in batch.schema.names:
                weight += float(view(batch.column(WEIGHTS).flatten()).sum(dtype=np.float64))
    except (IntegrityError, pa.ArrowException, ValueError) as error:  # some damage appears only when columns are read
        said = str(error) if isinstance(error, IntegrityError) else f"cannot be read: {error}"
        return [*findings, Finding(shard.name, said)], weight
    if (tokens, trained, max_docs) != (shard.tokens, shard.trained, shard.max_docs):
        what = (
            f"has {tokens:,} tokens, {trained:,} trained labels and at most {max_docs:,} documents per row, but the "
            f"manifest says {shard.tokens:,}, {shard.trained:,} and {shard.max_docs:,}"
        )
        findings.append(Finding(shard.name, what))
    return findings[:20], weight


# Rows


def _problems(batch: pa.RecordBatch, manifest: Manifest) -> Iterator[tuple[int, str]]:
    """Yield (row, problem) for the first row that breaks each invariant.

    Tokens are looked at only if all columns of all rows have the lengths that they should have.
    """
    found = list(_first_of(_pairs(batch, manifest) if manifest.preference else _shape(batch, manifest)))
    yield from found
    if not found and not manifest.preference:
        yield from _first_of(_tokens(batch, manifest))


def _first_of(checks: Iterator[Check]) -> Iterator[tuple[int, str]]:
    """Yield (row, problem) for the first row that breaks each check."""
    for bad, rows, what in checks:
        if bad.any():
            first = int(np.argmax(bad))
            yield first if rows is None else int(rows[first]), what


def _shape(batch: pa.RecordBatch, manifest: Manifest) -> Iterator[Check]:
    """The lengths of the columns."""
    tokens, lengths = list_lengths(batch.column("input_ids")), view(batch.column("seq_lengths").flatten())
    pieces = list_lengths(batch.column("seq_lengths"))
    rows = np.repeat(np.arange(batch.num_rows), pieces)
    for name in ("labels", "position_ids", WEIGHTS):
        if name in batch.schema.names:
            yield list_lengths(batch.column(name)) != tokens, None, f"{name} has another length than input_ids"
    for name in ("doc_starts", "doc_ids", UNPADDED):
        if name in batch.schema.names:
            yield list_lengths(batch.column(name)) != pieces, None, f"{name} has another length than seq_lengths"
    key = "row_length" if manifest.row_length > manifest.max_length else "max_length"
    yield tokens > manifest.row_length, None, f"is longer than {key} ({manifest.row_length:,})"
    if manifest.longest_piece < manifest.row_length:
        longest = f"a piece is longer than max_length ({manifest.longest_piece:,})"
        yield lengths > manifest.longest_padded, rows, longest
        if UNPADDED in batch.schema.names:
            own = view(batch.column(UNPADDED).flatten())
            if len(own) == len(lengths):
                yield own > manifest.longest_piece, rows, longest
    yield lengths < 1, rows, "a piece has no tokens"
    sums = np.bincount(rows, weights=lengths, minlength=batch.num_rows).astype(np.int64)
    yield sums != tokens, None, "seq_lengths does not add up to the row"
    if UNPADDED in batch.schema.names:
        own = view(batch.column(UNPADDED).flatten())
        if len(own) == len(lengths):
            what = f"{UNPADDED} is not between 1 and the piece's seq_lengths"
            yield (own > lengths) | (own < 1), rows, what
            yield pieces < 1, None, "has no piece"


def _tokens(batch: pa.RecordBatch, manifest: Manifest) -> Iterator[Check]:
    """The tokens of rows whose columns have the right lengths."""
    lengths = view(batch.column("seq_lengths").flatten())
    pieces = list_lengths(batch.column("seq_lengths"))
    piece_rows = np.repeat(np.arange(batch.num_rows), pieces)
    rows = np.repeat(piece_rows, lengths)
    ids, labels, positions = (view(batch.column(name).flatten()) for name in ("input_ids", "labels", "position_ids"))
    trained = labels != IGNORE_INDEX
    yield positions != ranges(0, lengths), rows, "position_ids do not count 0, 1, 2, … in every piece"
    yield trained & (labels != ids), rows, "a label is neither its own input id nor -100"
    heads = "the first label of a piece is not -100: one document would be trained to predict another"
    yield trained[starts_of(lengths)], piece_rows, heads
    if WEIGHTS in batch.schema.names:
        weights = view(batch.column(WEIGHTS).flatten())
        yield ~np.isfinite(weights) | (weights < 0), rows, "a loss weight is negative or not finite"
        yield trained & ~(weights > 0), rows, "a trained token has no loss weight"
        yield ~trained & (weights != 0), rows, "a token without a label has a loss weight"
    if UNPADDED in batch.schema.names:
        own = view(batch.column(UNPADDED).flatten())
        uneven = manifest.pack.alignment.padded(own, offsets_of(pieces)) != lengths
        yield uneven, piece_rows, "a piece is padded to another length than the configuration asks for"
        padding = ranges(0, lengths) >= np.repeat(own, lengths)
        yield padding & trained, rows, "padding has a label"
        yield padding & (ids != manifest.pad_id), rows, f"padding is not the token {manifest.pad_id}"


def _pairs(batch: pa.RecordBatch, manifest: Manifest) -> Iterator[Check]:
    """Preference pairs."""
    prompt, chosen, rejected = _pair_lengths(batch)
    for name, lengths in (("chosen_ids", chosen), ("rejected_ids", rejected)):
        yield lengths == 0, None, f"{name} is empty"
        what = f"prompt_ids and {name} are longer than max_length ({manifest.max_length:,})"
        yield prompt + lengths > manifest.max_length, None, what
    yield list_lengths(batch.column("doc_ids")) != 1, None, "does not have one doc id"
    same = np.zeros(batch.num_rows, dtype=np.bool_)
    for row in np.flatnonzero((chosen == rejected) & (chosen > 0)).tolist():
        left, right = (view(batch.column(name)[row].values) for name in ("chosen_ids", "rejected_ids"))
        same[row] = np.array_equal(left, right)
    yield same, None, "chosen_ids and rejected_ids are the same"


def _pair_lengths(batch: pa.RecordBatch) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(N,) lengths of the prompts, of the chosen and of the rejected completions."""
    names = ("prompt_ids", "chosen_ids", "rejected_ids")
    prompt, chosen, rejected = (list_lengths(batch.column(name)) for name in names)
    return prompt, chosen, rejected
