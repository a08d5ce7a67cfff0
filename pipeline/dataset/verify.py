"""Checks that a finished dataset matches its manifest, and that its rows keep the invariants that trainers rely on."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from ...schemas.errors import IntegrityError
from ...schemas.manifest import FileRecord, ShardRecord
from ...schemas.names import MANIFEST
from ..observer import Observer, Silent
from ..store.open_store import Store
from .open_dataset import Finished, open_dataset
from .row_checks import Sums, problems


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
    shards = [shard for split in manifest.splits.values() for shard in split.shards]
    weights = 0.0
    observer.begin("verify", sum(shard.tokens for shard in shards), "tok")
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
    known = {MANIFEST, *(file.name for file in manifest.files), *(shard.name for shard in shards)}
    for name in dataset.store.names():
        if name not in known and "shards/" in name and not name.startswith("_run/"):
            findings.append(Finding(name, "is not in the manifest; remove it, because a reader might take it for data"))
    rows, tokens = sum(shard.rows for shard in shards), sum(shard.tokens for shard in shards)
    return Verification(len(shards) + len(manifest.files), rows, tokens, tuple(findings))


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
    sums, row, manifest = Sums(), 0, dataset.manifest
    try:
        for batch in dataset.batches(shard):
            findings += [Finding(f"{shard.name}, row {row + bad}", what) for bad, what in problems(batch, manifest)]
            sums.add(batch, manifest.preference)
            row += batch.num_rows
    except (IntegrityError, pa.ArrowException, ValueError) as error:  # some damage appears only when columns are read
        said = str(error) if isinstance(error, IntegrityError) else f"cannot be read: {error}"
        return [*findings, Finding(shard.name, said)], sums.weight
    if (sums.tokens, sums.trained, sums.max_docs) != (shard.tokens, shard.trained, shard.max_docs):
        what = (
            f"has {sums.tokens:,} tokens, {sums.trained:,} trained labels and at most {sums.max_docs:,} documents per "
            f"row, but the manifest says {shard.tokens:,}, {shard.trained:,} and {shard.max_docs:,}"
        )
        findings.append(Finding(shard.name, what))
    return findings[:20], sums.weight
