"""Checks that a finished dataset matches its manifest, and that its rows keep the invariants that trainers rely on."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa

from ...schemas.errors import IntegrityError
from ...schemas.manifest import FileRecord, ShardRecord, SplitRecord
from ...schemas.names import MANIFEST
from ...schemas.ragged import ranges, starts_of
from ...schemas.rows import IGNORE_INDEX
from ...stages.arrays import list_lengths, view
from ..observer import Observer, Silent
from ..pack.check_pairs import check_pairs, count_pairs, first_row
from ..pack.row_sizes import row_sizes_name
from ..store.open import Store
from .open import Finished, open_dataset
from .padding_check import check_padding, first_token, padding_token
from .unfinished import refuse_unfinished
from .weight_check import check_weights, differing_sum, weight_sum


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


@dataclass(frozen=True, slots=True)
class Verification:
    """What `verify` checked and found."""

    files: int
    rows: int
    tokens: int
    findings: tuple[Finding, ...]

    @property
    def sound(self) -> bool:
        """Whether there are no findings."""
        return not self.findings


def verify(folder: str | Path, *, deep: bool = False, observer: Observer | None = None) -> Verification:
    """Check a dataset: every row's invariants, sizes and counts; with `deep`, every byte against its hash.

    Raises:
        InputError: the folder has no finished dataset.
        IntegrityError: the manifest itself is damaged.
    """
    observer = observer or Silent()
    refuse_unfinished(folder, deep=deep)
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
        findings += check_file(dataset.store, file, deep)
    damaged = {finding.name for finding in findings}
    shards = [shard for split in manifest.splits.values() for shard in split.shards]
    weights = 0.0
    observer.begin("verify", sum(shard.tokens for shard in shards), "tok")
    for name, split in manifest.splits.items():
        if not split.shards:
            findings.append(Finding(MANIFEST, f"lists no shards for split {name!r}"))
            continue
        sizes, first = _RowSizes(dataset, split), 0
        sizes.gone = sizes.name in damaged
        for shard in split.shards:
            sizes.row, first = first, first + shard.rows
            found = list(check_file(dataset.store, shard, deep))
            if not found:
                found, weight = _check_shard(dataset, shard, manifest.max_length, sizes)
                weights += weight
            findings += found
            observer.advance(shard.tokens, rows=shard.rows, tokens=shard.tokens)
    observer.end()
    if not findings and (differs := differing_sum(manifest.ledger, weights)) is not None:
        findings.append(Finding(MANIFEST, differs))
    known = {MANIFEST, *(file.name for file in manifest.files), *(shard.name for shard in shards)}
    for name in dataset.store.names():
        if name not in known and "shards/" in name and not name.startswith("_run/"):
            findings.append(Finding(name, "is not in the manifest; remove it, because a reader might take it for data"))
    return Verification(
        len(shards) + len(manifest.files),
        sum(shard.rows for shard in shards),
        sum(shard.tokens for shard in shards),
        tuple(findings),
    )


def check_file(store: Store, record: FileRecord | ShardRecord, deep: bool) -> Iterator[Finding]:
    """Yield what is wrong with a file: its size; with `deep`, its content."""
    actual = store.size(record.name)
    if actual is None:
        yield Finding(record.name, "is missing")
    elif actual != record.bytes:
        yield Finding(record.name, f"has {actual:,} bytes, but the manifest says {record.bytes:,}")
    elif deep:
        found = store.hash(record.name, sha256=True)
        if found is None or (found.hash, found.sha256) != (record.hash, record.sha256):
            yield Finding(record.name, "does not match its hash in the manifest")


class _RowSizes:
    """The row sizes of a split, from the file beside its shards, in row order; empty if the file cannot be read."""

    def __init__(self, dataset: Finished, split: SplitRecord) -> None:
        self.name = row_sizes_name(split)
        self._tokens, self._squares = np.zeros(0, np.int32), np.zeros(0, np.int64)
        self.row = 0
        """The next row to check."""
        self.gone = False
        """Whether the file is damaged; that is already reported."""
        with suppress(OSError, pa.ArrowException), pa.memory_map(str(dataset.store.local(self.name))) as source:
            batch = pa.ipc.open_file(source).get_batch(0)
            self._tokens, self._squares = view(batch.column("tokens")), view(batch.column("squares"))

    def check(self, batch: pa.RecordBatch) -> Iterator[tuple[int, str]]:
        """Return (row, problem) for the first of the next rows whose sizes are wrong."""
        if self.gone:
            return
        here = slice(self.row, self.row + batch.num_rows)
        self.row += batch.num_rows
        sizes = list_lengths(batch.column("seq_lengths"))
        lengths = view(batch.column("seq_lengths").flatten()).astype(np.int64)
        owners = np.repeat(np.arange(batch.num_rows), sizes)
        squares = np.zeros(batch.num_rows, np.int64)
        np.add.at(squares, owners, lengths * lengths)
        if len(self._tokens[here]) < batch.num_rows:
            yield 0, f"{self.name} lacks this row's sizes"
            return
        wrong = (self._tokens[here] != list_lengths(batch.column("input_ids"))) | (self._squares[here] != squares)
        yield from first_row(wrong, f"{self.name} has other sizes for this row")


def _check_shard(
    dataset: Finished, shard: ShardRecord, max_length: int, sizes: _RowSizes
) -> tuple[list[Finding], float]:
    """What is wrong with a shard's rows, and the sum of their loss weights."""
    weight = 0.0
    tokens = trained = row = max_docs = 0
    findings: list[Finding] = []
    alignment, pad_id = dataset.manifest.alignment, padding_token(dataset)
    try:
        for batch in dataset.batches(shard):
            if dataset.manifest.preference:
                wrong, counts = check_pairs(batch, max_length), count_pairs(batch)
            else:
                padding = check_padding(batch, alignment, pad_id)
                checks = check_rows(batch, max_length), padding, check_weights(batch), sizes.check(batch)
                wrong, counts = chain(*checks), _counts(batch)
                weight += weight_sum(batch)
            findings += [Finding(f"{shard.name}, row {row + bad}", what) for bad, what in wrong]
            tokens, trained, max_docs = tokens + counts[0], trained + counts[1], max(max_docs, counts[2])
            row += batch.num_rows
    except IntegrityError as error:
        return [*findings, Finding(shard.name, str(error))], weight
    except (pa.ArrowException, ValueError) as error:  # damage that appears only when columns are read
        return [*findings, Finding(shard.name, f"cannot be read: {error}")], weight
    if (tokens, trained, max_docs) != (shard.tokens, shard.trained, shard.max_docs):
        findings.append(
            Finding(
                shard.name,
                f"has {tokens:,} tokens, {trained:,} trained labels and at most {max_docs:,} documents per row, "
                f"but the manifest says {shard.tokens:,}, {shard.trained:,} and {shard.max_docs:,}",
            )
        )
    return findings[:20], weight


def _counts(batch: pa.RecordBatch) -> tuple[int, int, int]:
    """Return the number of tokens, the number of trained labels, and the most documents in a row."""
    trained = int(np.count_nonzero(view(batch.column("labels").flatten()) != IGNORE_INDEX))
    most = int(list_lengths(batch.column("seq_lengths")).max(initial=0))
    return len(batch.column("input_ids").flatten()), trained, most


def check_rows(batch: pa.RecordBatch, max_length: int) -> Iterator[tuple[int, str]]:
    """Yield (row, problem) for the first packed row that breaks each invariant.

    The invariants: as many labels and positions as input ids; piece lengths add up to the row; rows are at most
    `max_length` long; positions count 0, 1, 2, … in every piece; every label is its own input id or -100; the first
    label of every piece is -100.
    """
    ids, labels, positions = (batch.column(name) for name in ("input_ids", "labels", "position_ids"))
    pieces = batch.column("seq_lengths")
    row_tokens = list_lengths(ids)
    for name, column in (("labels", labels), ("position_ids", positions)):
        yield from first_row(list_lengths(column) != row_tokens, f"{name} has another length than input_ids")
    for name in ("doc_starts", "doc_ids"):
        yield from first_row(
            list_lengths(batch.column(name)) != list_lengths(pieces), f"{name} has another length than seq_lengths"
        )
    yield from first_row(row_tokens > max_length, f"is longer than max_length ({max_length:,})")
    lengths = view(pieces.flatten())
    piece_rows = np.repeat(np.arange(batch.num_rows), list_lengths(pieces))
    sums = np.bincount(piece_rows, weights=lengths, minlength=batch.num_rows).astype(np.int64)
    uneven = sums != row_tokens
    yield from first_row(uneven, "seq_lengths does not add up to the row")
    if uneven.any() or (list_lengths(labels) != row_tokens).any() or (list_lengths(positions) != row_tokens).any():
        return
    token_rows = np.repeat(np.arange(batch.num_rows), row_tokens)
    expected = ranges(0, lengths)
    flat_ids, flat_labels = view(ids.flatten()), view(labels.flatten())
    wrong_position = view(positions.flatten()) != expected
    yield from first_token(wrong_position, token_rows, "position_ids do not count 0, 1, 2, … in every piece")
    foreign = (flat_labels != IGNORE_INDEX) & (flat_labels != flat_ids)
    yield from first_token(foreign, token_rows, "a label is neither its own input id nor -100")
    heads = starts_of(lengths)[lengths > 0]
    yield from first_token(
        flat_labels[heads] != IGNORE_INDEX,
        token_rows[heads],
        "the first label of a piece is not -100: one document would be trained to predict another",
    )
