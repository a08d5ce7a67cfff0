"""An export: shards of a finished dataset → files of another format, one task per shard, then the manifest.

1. Check the options, the dataset and the destination.
2. Before the first file: check every shard against its hash, and every row against the format.
3. Write the files of each shard. After a crash, the next run finds what is done.
4. Write what covers a whole split, then the manifest.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...schemas.config.run_section import RunSection
from ...schemas.errors import InputError, IntegrityError, OutputError
from ...schemas.jsontext import indented_json, parse_json
from ...schemas.rows import schema_of
from ..dataset.open import Finished, open_dataset
from ..dataset.output_folder import PLAN
from ..dataset.padding_check import padding_token
from ..dataset.unfinished import refuse_unfinished
from ..execute.backends import open_executor
from ..execute.checking import damaged
from ..execute.executor import Executor, perform
from ..observer import Observer, Silent
from ..report.card import NAME as CARD
from ..report.card import dataset_card
from ..run.commit import put_record
from ..run.steps import packtrain_version
from ..run.worker_count import count_workers
from ..store.driver_lock import DriverLock, driving
from ..store.local import LocalStore, check_tree
from ..store.open import Store, StoredFile, ask_all, open_store, require_conditional, require_writable, resolve_place
from .manifest import NAME, ExportedSplit, ExportManifest, differences, read_export
from .options import ExportOptions, not_carried, refuse_weights, suited
from .reader_files import hub_place, reader_files
from .shard_writers import ShardCounts, ShardPlace
from .task import ExportResult, ExportTask, read_result

CLAIM = "_run/export.json"
"""What the folder is for; written before the first file."""
ALONE_TOKENS = 1 << 23
"""Up to this many tokens are exported in this process, which is faster than waiting for workers."""


@dataclass(frozen=True, slots=True)
class ExportOutcome:
    """What an export did."""

    manifest: ExportManifest
    changed: bool
    """False if the export was finished before."""


def export(
    dataset: str | Path,
    out: str | Path,
    options: ExportOptions,
    *,
    workers: int | None = None,
    observer: Observer | None = None,
) -> ExportOutcome:
    """Write a finished dataset in another format: the same rows, in the same order and splits.

    An interrupted export continues where it stopped; a finished one is left as it is.

    Args:
        dataset, out: folders or URLs.
        options: from `options.export_options`.
        workers: worker processes; None for one per core.

    Raises:
        InputError: the dataset is unfinished or damaged, has preference pairs, or has a row that the format cannot
            hold. Nothing is written then.
        ConfigError: the format needs rows that are made for another parallel layout.
        OutputError: the destination holds something else.
    """
    observer = observer or Silent()
    source = open_source(dataset)
    place = resolve_place(str(out), Path.cwd())
    require_writable(place)
    store = open_store(place)
    refuse_weights(options, source.manifest.schema)
    options = suited(options, source.manifest.parallel)
    plan = export_plan(source, options)
    _check_destination(store, plan)
    if _finished(store) is not None:
        return _unchanged(source, store, options, observer)
    tasks = list(_tasks(source, store, options))
    tokens = sum(task.shard.tokens for task in tasks)
    count = 1 if tokens <= ALONE_TOKENS else min(count_workers(RunSection(workers=workers)), len(tasks))
    executor = open_executor(RunSection(workers=workers), count, source.store, store)
    executor.get_ready()
    try:
        if not store.exists(CLAIM):
            _check_source(source, tasks, executor, observer)
        require_conditional(store)  # after the check, because it writes a note
        with driving(store) as lock:
            if lock.waited and _finished(store) is not None:
                return _unchanged(source, store, options, observer)
            manifest = _write(source, store, plan, tasks, executor, lock, observer)
            _put_card(source, store, manifest, options)
            return ExportOutcome(manifest, changed=True)
    finally:
        executor.close()


def open_source(dataset: str | Path) -> Finished:
    """Open a dataset that can be exported.

    Raises:
        InputError: it is unfinished, lacks files, or holds preference pairs.
    """
    try:
        refuse_unfinished(dataset, deep=False)
        source = open_dataset(dataset)
        missing = _missing(source)
    except IntegrityError as error:
        raise InputError(str(error)) from error
    for name in source.manifest.splits:
        if not name.isidentifier() or not name.isascii():  # it becomes part of file names
            raise InputError(
                f"{dataset}: its manifest has a split named {name[:80]!r}; packtrain run writes no such name"
            )
    if source.manifest.preference:
        raise InputError(
            f"{dataset} holds preference pairs, which are not packed; datasets.load_from_disk reads them as they are"
        )
    if missing:
        raise InputError(
            f"{source.store.where(missing[0])} is missing or has another size than the manifest says; packtrain "
            f"repair {dataset} rebuilds it"
        )
    return source


def _missing(source: Finished) -> list[str]:
    shards = [shard for split in source.manifest.splits.values() for shard in split.shards]
    sizes = ask_all(source.store, lambda shard: source.store.size(shard.name), shards)
    return [shard.name for shard, size in zip(shards, sizes, strict=True) if size != shard.bytes]


def export_plan(source: Finished, options: ExportOptions) -> dict[str, Any]:
    """Everything that the written bytes depend on."""
    return {
        "dataset": source.manifest.hash,
        "max_length": source.manifest.max_length,
        **options.payload(),
        "versions": {"packtrain": packtrain_version(), "pyarrow": pa.__version__},
    }


def _check_destination(store: Store, plan: dict[str, Any]) -> None:
    """Refuse a destination with other content. Writes nothing.

    Raises:
        OutputError: it is a file, holds something else or another export, or is damaged.
    """
    if isinstance(store, LocalStore):
        there = next(path for path in (store.root, *store.root.parents) if path.exists())
        if not there.is_dir():
            raise OutputError(f"--out: {there} is a file; choose a folder")
    try:
        if isinstance(store, LocalStore):
            check_tree(store.root)
        manifest = read_export(store)
        earlier = manifest.plan if manifest is not None else parse_json(store.read(CLAIM) or b"null")
    except (IntegrityError, ValueError) as error:
        raise OutputError(f"--out: {store.url} cannot be used: {error}") from error
    if earlier is None:
        held = sorted(name for name in store.top() if name != "_run")
        held += [PLAN] if store.exists(PLAN) else []  # of an unfinished dataset
        if held:
            some = ", ".join(held[:5]) + (", …" if len(held) > 5 else "")
            raise OutputError(f"--out: {store.url} has other content ({some}); choose an empty folder")
    elif not isinstance(earlier, dict) or earlier != plan:
        lines = differences(earlier, plan) if isinstance(earlier, dict) else ["its plan cannot be read"]
        shown = "\n".join(f"  {line}" for line in lines)
        raise OutputError(
            f"--out: {store.url} belongs to another export. Differences (there → here):\n{shown}\n"
            "Choose another folder, or delete this one."
        )


def _finished(store: Store) -> ExportManifest | None:
    """The manifest, if all its files are there."""
    manifest = read_export(store)
    if manifest is None:
        return None
    sizes = ask_all(store, lambda file: store.size(file.name), manifest.files)
    return manifest if all(size == file.bytes for size, file in zip(sizes, manifest.files, strict=True)) else None


def _unchanged(source: Finished, store: Store, options: ExportOptions, observer: Observer) -> ExportOutcome:
    manifest = read_export(store)
    assert manifest is not None
    _put_card(source, store, manifest, options)
    observer.note(f"{store.url} is already exported")
    return ExportOutcome(manifest, changed=False)


def _put_card(source: Finished, store: Store, manifest: ExportManifest, options: ExportOptions) -> None:
    """Write README.md, by which the Hub and `datasets` know which files are which split. It is not in the manifest, and
    one that is there stays, because people edit it.
    """
    if options.to == "trl" and not store.exists(CARD):
        store.put_bytes(CARD, dataset_card(source.manifest, hub_place(manifest, "owner/name")))


def _tasks(source: Finished, out: Store, options: ExportOptions) -> Iterator[ExportTask]:
    manifest, pad_id = source.manifest, padding_token(source)
    schema = schema_of(manifest.schema)
    for name, split in manifest.splits.items():
        row = 0
        for index, shard in enumerate(split.shards):
            place = ShardPlace(name, index, len(split.shards), manifest.max_length, pad_id, schema, manifest.alignment)
            yield ExportTask(source.store, shard, row, place, options, out)
            row += shard.rows


def _check_source(source: Finished, tasks: list[ExportTask], executor: Executor, observer: Observer) -> None:
    """Read everything once, so that bad input is found before the first file is written.

    Raises:
        InputError: a shard is damaged, or a row does not fit into the format.
    """
    shards = [task.shard for task in tasks]
    bad = damaged(executor, source.store, [StoredFile(one.name, one.bytes, one.hash) for one in shards])
    if bad:
        raise InputError(
            f"{source.store.where(min(bad))} does not match its hash in the manifest; packtrain repair "
            f"{source.store.url} rebuilds it"
        )
    observer.begin("check", sum(shard.tokens for shard in shards), "tok")
    for result in executor.map(perform, (replace(task, out=None) for task in tasks)):
        assert isinstance(result, ExportResult)
        observer.advance(result.counts.tokens, rows=result.counts.rows, tokens=result.counts.tokens)
    observer.end()


def _write(
    source: Finished,
    store: Store,
    plan: dict[str, Any],
    tasks: list[ExportTask],
    executor: Executor,
    lock: DriverLock,
    observer: Observer,
) -> ExportManifest:
    store.sweep()  # drafts of killed processes
    store.put_bytes(CLAIM, indented_json(plan, 2))
    _check_destination(store, plan)
    done = _done(store, tasks, executor, observer)
    left = [task for task in tasks if task.record not in done]
    observer.begin("export", sum(task.shard.tokens for task in left), "tok")
    for result in executor.map(perform, left):
        assert isinstance(result, ExportResult)
        done[f"_run/{result.split}/{result.index:05d}.json"] = result
        observer.advance(result.counts.tokens, rows=result.counts.rows, tokens=result.counts.tokens)
    observer.end()
    lock.check()
    options, max_length = tasks[0].options, source.manifest.max_length
    results = {
        name: [done[task.record] for task in tasks if task.place.split == name] for name in source.manifest.splits
    }
    totals = {
        name: reduce(ShardCounts.plus, (one.counts for one in made), ShardCounts()) for name, made in results.items()
    }
    files = [file.record for made in results.values() for one in made for file in one.files]
    files += [
        put_record(store, *each)
        for each in reader_files(options, results, totals, max_length, schema_of(source.manifest.schema))
    ]
    splits = {
        name: ExportedSplit(total.rows, total.pieces, total.tokens, total.trained, total.padding)
        for name, total in totals.items()
    }
    files.sort(key=lambda file: file.name)
    manifest = ExportManifest(plan, not_carried(options.to, source.manifest.schema), splits, tuple(files))
    store.sweep()
    if not store.put_bytes(NAME, manifest.to_bytes()) and store.read(NAME) != manifest.to_bytes():
        raise IntegrityError(f"{store.where(NAME)} already exists with other content; please report this bug")
    return manifest


def _done(store: Store, tasks: list[ExportTask], executor: Executor, observer: Observer) -> dict[str, ExportResult]:
    """The results of earlier processes whose files are intact, by record."""
    found = {}
    for task in tasks:
        result = read_result(store, task.record)
        if result is not None:
            found[task.record] = result
    records = [file.record for result in found.values() for file in result.files]
    bad = damaged(executor, store, [StoredFile(one.name, one.bytes, one.hash) for one in records])
    for name in sorted(bad):
        observer.note(f"{store.where(name)} is damaged, and is made again")
    return {
        record: result for record, result in found.items() if not any(file.record.name in bad for file in result.files)
    }
