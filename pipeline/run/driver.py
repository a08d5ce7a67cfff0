"""The run: sources → encoded parts → plan → shards → manifest.

1. Check the folder: is it finished, interrupted, or from another run?
2. Prepare: scan the inputs, load the tokenizer, choose the engine.
3. Encode the blocks that the cache lacks.
4. Read lengths, and decide what is kept of each document.
5. Plan the rows and write the shards, with documents.parquet beside them.
6. Close the ledger and write the manifest last. Then write the card (README.md) and the report; they are not part of
   the dataset.

Steps 3 and 5 run in an executor. Each task is a pure function of its argument. After a crash the next run goes through
the same steps, and does the tasks that have no finished file.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...schemas.config.config import RunConfig
from ...schemas.manifest import Manifest
from ...schemas.names import REJECTS
from ...schemas.units import plural
from ..configfile import load_config
from ..dataset.manifests import read_manifest
from ..dataset.open import Finished
from ..dataset.output_folder import (
    all_there,
    check_config,
    check_folder,
    claim,
    plan_inputs,
)
from ..dataset.run_notes import Request, is_asked_again, remember
from ..encode.prepared import Prepared
from ..inputs.in_memory import called, written
from ..inputs.scan_cache import scan_inputs
from ..observer import Observer, Printed, Silent
from ..report.files import HTML as REPORT
from ..store.driver_lock import driving
from .closing_advice import closing_advice, on_rejects
from .commit import commit, put_card
from .estimate import RunEstimate, estimate_run, require_room
from .prepare import prepare
from .steps import (
    decontaminate,
    encode_inputs,
    pack,
    packtrain_version,
    plan_of,
    prepare_inputs,
    select,
    write_lists,
)
from .workspace import Workspace, open_workers, open_workspace

if TYPE_CHECKING:
    import datasets

    from ..report.files import AtEnd


def run(
    config: "RunConfig | Mapping[str, Any] | str | Path",
    *,
    data: Mapping[str, "datasets.Dataset"] | None = None,
    observer: Observer | None = None,
    quiet: bool = False,
    base: Path | None = None,
) -> Manifest:
    """Run packtrain and return the manifest of the finished dataset.

    A finished dataset is left as it is; an interrupted run continues where it stopped.

    Args:
        config: a RunConfig, the same as plain data, or the path of a YAML file.
        data: name → a dataset in memory, each a source of that name. The configuration may have a source of the same
            name without `path`, which says how to use it. Each is written once into the cache, by its content.
        observer: receives progress and notes. By default notes are printed on standard error.
        quiet: print nothing.
        base: the folder where relative paths of the configuration start. By default the folder of the file, or
            the working directory.

    Raises:
        ConfigError, InputError, TokenizerError, TemplateError, OutputError: something that the user can fix.
        StoreError, IntegrityError, TaskError: a failure.
    """
    data = data or {}
    loaded, folder = load_config(config, base, in_memory={name: called(name) for name in data})
    work = open_workspace(loaded, folder, observer or (Silent() if quiet else Printed()))
    if not data:
        return _find_or_make(loaded, work)
    with written(loaded, data, work.scratch) as with_files:
        return _find_or_make(with_files, work)


def _find_or_make(config: RunConfig, work: Workspace) -> Manifest:
    finished = find_finished(config, work)
    if finished is None:
        manifest = make_dataset(config, work).manifest
        if (said := on_rejects(manifest.ledger.total(), work.out.where(REJECTS))) is not None:
            work.observer.note(said)
        return manifest
    put_card(work.out, finished, work.observer)  # an earlier version, or a run that was killed, may have left it out
    return finished


@dataclass(frozen=True, slots=True)
class Made:
    """A finished run, with what is left to tell the user."""

    manifest: Manifest
    report: "AtEnd | None" = None
    advice: tuple[str, ...] = ()
    """Sentences on what the user may want to change."""


def find_finished(config: RunConfig, work: Workspace, *, verify_inputs: bool = False) -> Manifest | None:
    """Return the manifest if this same run is already finished, else None. Takes milliseconds, because inputs are
    compared by size and time.

    Args:
        verify_inputs: also compare the inputs by content.

    Raises:
        OutputError: the folder holds something else.
    """
    check_folder(work.out)
    check_config(work.out, config)
    request = Request.of(config, work.base, packtrain_version())
    manifest = read_manifest(work.out)
    if manifest is None or not is_asked_again(work.out, request) or not all_there(work.out, manifest):
        return None
    if verify_inputs:
        files = scan_inputs(config.sources, work.base, work.scratch, trust=False)
        if plan_inputs(files) != manifest.plan["inputs"]:
            return None
    work.observer.note(f"{work.out.url} is already finished; nothing to do")
    if config.run.report and not work.out.exists(REPORT):
        work.observer.note(f"its report is missing; packtrain report {work.out.url} writes it")
    return manifest


def make_dataset(config: RunConfig, work: Workspace) -> Made:
    """Do the work that remains.

    Raises:
        BusyError: another driver is working on the same output folder.
    """
    with driving(work.out, shard=config.run.shard, wait=config.run.wait) as lock:
        finished = find_finished(config, work) if lock.waited else None
        return Made(finished) if finished is not None else _make(config, work)


def _make(config: RunConfig, work: Workspace) -> Made:
    out, observer = work.out, work.observer
    # Taken before anything is read, so that a file that changes later counts as another input.
    request = Request.of(config, work.base, packtrain_version())
    with open_workers(config.run, work) as executor:
        prepared, estimate = prepare_inputs(config, work, executor)
        if estimate.cached:
            of = plural(estimate.blocks, "block of the input is", "blocks of the input are")
            how_much = f"{estimate.cached:,} of {of}"
            if estimate.cached == estimate.blocks:
                how_much = "all blocks of the input are"
            observer.note(f"{how_much} in the cache, already encoded")
        require_room(estimate.room_needed, "encoding and packing", out, work.scratch)
        encoded = encode_inputs(config, prepared, estimate, work, executor)
        encoded = decontaminate(config, prepared, encoded, work, executor)
        plan = plan_of(config, prepared, encoded)
        selected = select(config, prepared, encoded, work, executor)

        # Claimed only now, so that a run that fails because of its configuration or data leaves the folder free for a
        # corrected run.
        claim(out, plan)
        documents = (record.counts.examples for record in encoded.records)
        remember(out, config, work.base, work.cache, request, prepared.joined, encoded.places, documents)
        lists = write_lists(config, prepared, encoded, work)
        packed = pack(selected, work, executor)
    manifest = commit(out, config.output.format, plan, packed, lists, selected.schema)
    put_card(out, manifest, observer)
    for why in estimate.why_missing:  # only now, because it would hide the error of a failed run
        observer.note(why)
    advice = closing_advice(config, selected.table, prepared.formats, packed)
    return Made(manifest, write_report(config, work, manifest), tuple(advice))


def look_ahead(config: RunConfig, work: Workspace) -> tuple[Prepared, RunEstimate]:
    """Prepare and estimate, then stop. Writes only notes in the cache."""
    here = config.run.model_copy(update={"executor": "local", "shard": None})
    with open_workers(here, work) as executor:
        prepared = prepare(config, work, executor)
        estimate = estimate_run(prepared, work)
    for why in estimate.why_missing:
        work.observer.note(why)
    return prepared, estimate


def write_report(config: RunConfig, work: Workspace, manifest: Manifest) -> "AtEnd | None":
    """Write the report unless the configuration turns it off, or another run that shares the work has written it. A
    failure here is reported as a note and never fails a finished run.
    """
    if not config.run.report or (config.run.shard is not None and work.out.exists(REPORT)):
        return None
    from ..dataset.decode import Decoder
    from ..report.files import try_report

    tokenizer = work.parts.reference
    return try_report(
        Finished(work.out, manifest), work.observer, Decoder(tokenizer) if tokenizer is not None else None
    )
