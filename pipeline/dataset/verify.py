"""Checks that a finished dataset matches its manifest, and that its rows keep the invariants that trainers rely on."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...schemas.arrays import list_lengths, view
from ...schemas.dataset.manifest import FileRecord, Manifest, ShardRecord
from ...schemas.dataset.names import MANIFEST
from ...schemas.dataset.reader import row_sizes_name
from ...schemas.errors import IntegrityError
from ...schemas.notebook import Shown, Table
from ...schemas.ragged import offsets_of, starts_of, sums_of
from ...schemas.rows import IGNORE_INDEX
from ...schemas.tables.columns import PARENTS, WEIGHTS
from ...schemas.units import plural
from ..observer import Observer
from ..store.open_store import Store
from .open_dataset import Finished, open_dataset
from .row_checks import row_problems, unpacked_lengths

_DATASETS_CACHE = re.compile(r"cache-[0-9a-f]+\.arrow", re.ASCII)
"""Names that the package datasets gives to what it computed, beside the files of a dataset that it has loaded."""
_MAX_FINDINGS = 20
"""Most findings of one shard: damage repeats itself in every batch."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem."""

    where: str
    """A file, or a row of a shard."""
    problem: str
    is_stray: bool = False
    """Whether the file does not belong to the dataset: the user has to remove it, and no repair rebuilds it."""

    @property
    def name(self) -> str:
        """The file with the problem."""
        return self.where.partition(", row ")[0]

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}"


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
        result = "sound" if self.sound else plural(len(self.findings), "finding")
        return f"{result} in {plural(self.files, 'file')}, {plural(self.rows, 'row')}, {plural(self.tokens, 'token')}"

    def tables(self) -> Iterator[Table]:
        if self.findings:
            yield Table("", ("where", "what"), ((finding.where, finding.problem) for finding in self.findings))


def verify(folder: str | Path, *, deep: bool = False, observer: Observer | None = None) -> Verification:
    """Check a dataset: every row's invariants, sizes and counts; with `deep`, every byte against its hash.

    >>> packtrain.verify("packed", deep=True).sound
    True

    Args:
        folder: the dataset's path or URL.
        observer: receives progress and notes; None: they go nowhere.

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
    for file in manifest.files:
        findings += _check_file(dataset.store, file, deep)
    rows = sum(split.rows for split in manifest.splits.values())
    tokens = sum(split.tokens for split in manifest.splits.values())
    counts: dict[str, list[_Counts]] = {}
    """Split → what each of its shards holds."""
    observer.begin("verify", tokens, "tok")
    for name, split in manifest.splits.items():
        counts[name] = []
        if not split.shards:
            findings.append(Finding(MANIFEST, f"lists no shards for split {name!r}"))
            continue
        for shard in split.shards:
            shard_findings = list(_check_file(dataset.store, shard, deep))
            if not shard_findings:  # else reading its rows would only say so again
                shard_findings, shard_counts = _check_shard(dataset, shard)
                counts[name].append(shard_counts)
            findings += shard_findings
            observer.advance(shard.tokens, rows=shard.rows, tokens=shard.tokens)
    observer.end()
    # Sums are compared last: where rows are wrong, they differ for what was named already.
    if not findings:
        findings += _check_sums(manifest, counts)
        for name, counts_of_split in counts.items():
            findings += _check_row_sizes(dataset, name, counts_of_split)
    if deep and dataset.store.read(MANIFEST) != manifest.to_bytes():
        findings.append(Finding(MANIFEST, "has been reformatted: other bytes with the same content"))
    if dataset.store.lists_names:
        findings += _check_strangers(dataset)
    else:
        observer.note("a web server does not list its files: whether it has others beside the dataset's is not known")
    return Verification(len(manifest.all_files), rows, tokens, tuple(findings))


def _check_strangers(dataset: Finished) -> Iterator[Finding]:
    """Yield the files among the shards that do not belong to the dataset: programs that read all Arrow files of a
    folder would take them for data. Whatever else a user puts into the dataset's folder is no finding.
    """
    listed = {MANIFEST, *(file.name for file in dataset.manifest.all_files)}
    for name in dataset.store.names():
        if name not in listed and "shards/" in name and not name.startswith("_run/"):
            is_cache = _DATASETS_CACHE.fullmatch(name.rpartition("/")[2]) is not None
            origin = "is a cache of the package datasets (of map, filter or shuffle), and " if is_cache else ""
            problem = f"{origin}is not in the manifest; remove it, because a reader might take it for data"
            yield Finding(name, problem, is_stray=True)


def _check_file(store: Store, record: FileRecord | ShardRecord, deep: bool) -> Iterator[Finding]:
    """Yield what is wrong with a file: it is missing, or its size is wrong; with `deep`, also a wrong hash."""
    # Without `deep`, a listing is enough; what a shard holds is checked by its rows anyway.
    actual = store.size(record.name)
    if actual is None:
        yield Finding(record.name, "is missing")
    elif actual != record.bytes:
        yield Finding(record.name, f"has {actual:,} bytes, but the manifest says {record.bytes:,}")
    elif deep:
        content = store.hash(record.name)
        if content is None or content.hash != record.hash:
            yield Finding(record.name, "does not match its hash in the manifest")


@dataclass(slots=True)
class _Counts:
    """What a shard holds."""

    tokens: int = 0
    trained: int = 0
    max_docs: int = 0
    highest_id: int = 0
    weight: float = 0.0
    """Sum of the loss weights."""
    row_tokens: list[NDArray[np.int64]] = field(default_factory=list)
    """Of each batch, (N,) tokens of each row."""
    row_squares: list[NDArray[np.int64]] = field(default_factory=list)
    """Of each batch, (N,) what attention costs in each row: the sum of n² over its pieces of n tokens, plus 2·n·p for a
    piece that continues p tokens of other pieces."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Count a batch of packed rows."""
        ids = view(batch.column("input_ids").flatten())
        labels = view(batch.column("labels").flatten())
        lengths = view(batch.column("seq_lengths").flatten()).astype(np.int64)
        self.tokens += len(ids)
        self.trained += int(np.count_nonzero(labels != IGNORE_INDEX))
        self.highest_id = max(self.highest_id, int(ids.max(initial=0)))
        if WEIGHTS in batch.schema.names:
            self.weight += float(view(batch.column(WEIGHTS).flatten()).sum(dtype=np.float64))
        self.row_tokens.append(list_lengths(batch.column("input_ids")).astype(np.int64))
        costs = lengths**2
        if PARENTS in batch.schema.names:  # a piece that continues p tokens begins at position p
            positions = view(batch.column("position_ids").flatten())
            costs += 2 * lengths * positions[starts_of(lengths)]
        self.row_squares.append(sums_of(costs, offsets_of(list_lengths(batch.column("seq_lengths")))))

    def add_pairs(self, batch: pa.RecordBatch) -> None:
        """Count a batch of preference pairs."""
        prompt, chosen, rejected = unpacked_lengths(batch)
        self.tokens += int((prompt + chosen + rejected).sum())
        self.trained += int((chosen + rejected - 2 * (prompt == 0)).sum())  # nothing predicts a first token


def _check_shard(dataset: Finished, shard: ShardRecord) -> tuple[list[Finding], _Counts]:
    """What is wrong with a shard's rows, and what it holds; of a shard that cannot be read to its end, what it holds up
    to there.
    """
    findings: list[Finding] = []
    counts = _Counts()
    first_row = 0
    manifest = dataset.manifest
    try:
        for batch in dataset.batches(shard):
            for row, problem in row_problems(batch, manifest):
                findings.append(Finding(f"{shard.name}, row {first_row + row}", problem))
            first_row += batch.num_rows
            counts.max_docs = max(counts.max_docs, int(list_lengths(batch.column("doc_ids")).max(initial=0)))
            if manifest.has_unpacked_pairs:
                counts.add_pairs(batch)
            else:
                counts.add(batch)
    except (IntegrityError, pa.ArrowException, ValueError) as error:  # some damage appears only when columns are read
        problem = str(error) if isinstance(error, IntegrityError) else f"cannot be read: {error}"
        return [*findings, Finding(shard.name, problem)], counts
    for unit, actual, expected in (
        ("tokens", counts.tokens, shard.tokens),
        ("trained labels", counts.trained, shard.trained),
        ("documents in its fullest row", counts.max_docs, shard.max_docs),
        ("as its highest token id", counts.highest_id, shard.highest_id),
    ):
        if actual != expected:
            findings.append(Finding(shard.name, f"has {actual:,} {unit}, but the manifest says {expected:,}"))
    return findings[:_MAX_FINDINGS], counts


def _check_sums(manifest: Manifest, counts: Mapping[str, Sequence[_Counts]]) -> Iterator[Finding]:
    """Yield where sums of the manifest differ from what all shards hold together, and shards that are there twice.

    Args:
        counts: split → what each of its shards holds.
    """
    sources = manifest.ledger.sources.values()
    weight = sum(shard.weight for shards in counts.values() for shard in shards)
    expected = sum(source.weight_trained for source in sources)
    if not np.isclose(expected, weight, rtol=1e-9, atol=0):  # sums in another order differ in their last digits
        problem = f"the ledger's loss weights add up to {expected:.9g}, but those of the shards to {weight:.9g}"
        yield Finding(MANIFEST, problem)
    records = [shard for split in manifest.splits.values() for shard in split.shards]
    for unit, actual, ledger_count in (
        ("tokens", sum(shard.tokens for shard in records), sum(source.tokens_packed for source in sources)),
        ("trained labels", sum(shard.trained for shard in records), sum(source.labels_trained for source in sources)),
    ):
        if actual != ledger_count:
            yield Finding(MANIFEST, f"the ledger counts {ledger_count:,} {unit}, but the shards hold {actual:,}")
    times = Counter(shard.hash for shard in records)
    for shard in records:
        if times[shard.hash] > 1:  # rows would be trained twice
            yield Finding(shard.name, f"is one of {times[shard.hash]:,} shards with the same content")
            return
    yield from _check_plans(manifest)


def _check_plans(manifest: Manifest) -> Iterator[Finding]:
    """Yield what is wrong with the plans: other numbers of rows than the shards have, and bounds that cannot be.

    Of 100 tokens and rows of 32, no plan has fewer than 4 rows: the bound is at least that, and no plan has fewer rows
    than its bound.
    """
    for name, split in manifest.splits.items():
        planned = sum(window.rows for window in split.windows)
        if split.windows and planned != split.rows:
            yield Finding(MANIFEST, f"the plan of split {name!r} has {planned:,} rows, but its shards {split.rows:,}")
        for window in split.windows:
            if not -(-window.tokens // manifest.row_length) <= window.bound <= window.rows:
                problem = (
                    f"the plan of split {name!r} has {window.rows:,} rows for {window.tokens:,} tokens, which does not "
                    f"go with its bound of {window.bound:,} and rows of {manifest.row_length:,}"
                )
                yield Finding(MANIFEST, problem)


def _check_row_sizes(dataset: Finished, split: str, counts: Sequence[_Counts]) -> Iterator[Finding]:
    """Yield what is wrong with the file that has the sizes of a split's rows (`ROW_SIZES`). Unpacked pairs have none.

    Args:
        counts: what each shard of the split holds.
    """
    record = dataset.manifest.splits[split]
    if dataset.manifest.has_unpacked_pairs or not record.shards:
        return
    name = row_sizes_name(record)
    if not any(file.name == name for file in dataset.manifest.files):
        yield Finding(MANIFEST, f"does not list {name}")
        return
    try:
        sizes = dataset.row_sizes(split)
    except IntegrityError as error:
        yield Finding(name, str(error))
        return
    for column, recorded, batches in (
        ("tokens", sizes.tokens, [batch for shard in counts for batch in shard.row_tokens]),
        ("squares", sizes.squares, [batch for shard in counts for batch in shard.row_squares]),
    ):
        if not np.array_equal(recorded, np.concatenate(batches)):
            yield Finding(name, f"its column {column} is not that of the rows in the shards")
