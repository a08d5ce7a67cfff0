"""The run: sources → encoded parts → plan → shards → manifest.

1. Check the folder: is it from another configuration?
2. Prepare: scan the inputs, load the tokenizer, choose the engine. Is the folder finished?
3. Encode the blocks that the cache lacks.
4. Read lengths, and decide what is kept of each document.
5. Plan the rows and write the shards, with documents.parquet beside them.
6. Close the ledger and write the manifest last. Then write the card (README.md) and the report; they are not part of
   the dataset.

Steps 3 and 5 run in an executor. Each task is a pure function of its argument. After a crash the next run goes through
the same steps, and does the tasks that have no finished file.
"""

import json
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...schemas.config.config import RunConfig
from ...schemas.dataset.manifest import FileRecord, read_manifest
from ...schemas.dataset.names import PLAN, REJECTS
from ...schemas.errors import InputError
from ...schemas.escape import escape, without_secrets
from ...schemas.fingerprint import version
from ..configfile import load_config, settings_of
from ..contamination import find_contamination
from ..dataset.dataset import Dataset
from ..dataset.decode import remember
from ..dataset.open_dataset import Finished
from ..dataset.output_folder import all_there, check_folder, check_plan, claim, plan_inputs
from ..encode.driver import Encoded, Prepared, encode
from ..encode.notes import describe_findings
from ..encode.rejects import list_rejects, rejects_jsonl
from ..encode.tokenizer import find_tokenizer
from ..execute.executor import Executor
from ..inputs.fetch import describe_data, write_data
from ..observer import Kept, Observer, Printed
from ..pack.pack import Selected, pack, padding_id, select
from ..report.collect import packing_of
from ..report.contamination_summary import contamination_of
from ..report.ledger_lines import describe_losses
from ..report.report_files import HTML, try_report
from ..report.sections import summary_lines
from ..store.run_lock import hold_run_lock
from .advice import describe_nothing_left, describe_selection
from .commit import commit, put_card, put_record
from .prepare import prepare
from .rejection_limit import require_few_rejects
from .workers import Workspace, open_workers, open_workspace

if TYPE_CHECKING:
    import datasets

    from ...schemas.report.report import Report


def run(
    config: "RunConfig | Mapping[str, Any] | str | Path",
    *,
    overrides: Mapping[str, Any] | None = None,
    data: "Mapping[str, datasets.Dataset | datasets.DatasetDict | datasets.IterableDataset] | None" = None,
    observer: Observer | None = None,
    quiet: bool = True,
    base: Path | None = None,
) -> Dataset:
    """Run packtrain and return the finished dataset, with what the run said in its `notes`.

    A finished dataset is left as it is; an interrupted run continues where it stopped. Nothing is printed. If rows are
    rejected, or more than 3 % of the supervised tokens are lost without having been left out by choice, a UserWarning
    says so.

    >>> dataset = packtrain.run("mix.yaml", overrides={"truncate.max_length": 512, "out": "packed-512"})
    >>> dataset.splits["train"].rows > 0
    True
    >>> dataset.ledger.sources["chats"].rows_read
    160
    >>> any(note.startswith("Trained: ") for note in dataset.notes)
    True

    Args:
        config: a RunConfig, the same as plain data, or the path of a YAML file.
        overrides: key → value, which replaces that of the configuration, such as `{"truncate.max_length": 4096}`.
        data: name → a dataset in memory, each a source of that name. The configuration may have a source of the same
            name without `path`, which says how to use it. Each is written once into the cache, by its content.
        observer: receives progress and notes; then nothing is warned of.
        quiet: without an observer: False prints notes on standard error, and then nothing is warned of.
        base: the folder where relative paths of the configuration start. By default the folder of the file, or
            the working directory.

    Raises:
        ConfigError, InputError, TokenizerError, TemplateError, OutputError: something that the user can fix.
        StoreError, IntegrityError, TaskError: a failure.
    """
    data = data or {}
    loaded, folder = load_config(config, base, settings_of(overrides), {name: describe_data(name) for name in data})
    shown_by = observer
    if shown_by is None:
        shown_by = Observer() if quiet else Printed()
    kept = Kept(shown_by)
    work = open_workspace(loaded, folder, kept)
    if data:
        loaded = write_data(loaded, data, work.scratch)
    end = make_dataset(loaded, work)
    if end.is_new:
        manifest = end.dataset.manifest
        for line, _style in summary_lines(manifest.ledger, packing_of(manifest), work.out.where(REJECTS)):
            kept.note(line)
        if observer is None and quiet:
            for line in describe_losses(manifest.ledger.total(), work.out.where(REJECTS)):
                warnings.warn(escape(without_secrets(line)), stacklevel=2)
    return Dataset(end.dataset, tuple(kept.notes))


@dataclass(frozen=True, slots=True)
class RunEnd:
    """A finished run, with what is left to tell the user."""

    dataset: Finished
    is_new: bool
    """Whether this run made it; else it was finished before."""
    report: "Report | None" = None
    """The report that this run made; None if it made none."""


def make_dataset(config: RunConfig, work: Workspace, *, damaged: Collection[str] = ()) -> RunEnd:
    """Do the work that remains: none, if the folder holds the finished dataset of this same run.

    Args:
        damaged: names of damaged files of a finished dataset, which are made again; empty for a run.

    Raises:
        OutputError: the folder holds something else.
        BusyError: another driver is working on the same output folder.
    """
    check_folder(work.out)
    # The configuration alone shows that a folder is another run's, before anything is read.
    check_plan(work.out, {"config": config.identity()})
    with hold_run_lock(work.out, shard=config.run.shard):
        return _make_locked(config, work, damaged)


def _make_locked(config: RunConfig, work: Workspace, damaged: Collection[str]) -> RunEnd:
    """The steps of a run, in a folder that is locked.

    Args:
        damaged: names of damaged files of a finished dataset, which are made again; empty for a run.
    """
    out = work.out
    with open_workers(config.run, work) as executor:
        prepared = prepare(config, work, executor)
        plan = plan_of(config, prepared)
        manifest = read_manifest(out)
        if manifest is not None and not damaged and manifest.plan == plan and all_there(out, manifest):
            return _leave_finished(config, work, Finished.in_store(out, manifest))
        check_plan(out, plan)  # inputs that have changed are refused before they are encoded

        encoded = encode_inputs(config, prepared, work, executor)
        try:
            if not damaged:  # a dataset that is repaired was finished, so its rejects were few enough
                require_few_rejects(config, prepared.joined, encoded.records)
            selected = select_documents(config, prepared, encoded, work)
        except InputError as error:
            raise _with_rejects(error, config, prepared, encoded, work) from None

        # Claimed only now, so that a run that fails because of its configuration or data leaves the folder free for a
        # corrected run.
        claim(out, plan)
        # By this note, `dataset/decode.py` finds the tokenizer that turns rows back into text.
        remember(out, find_tokenizer(config.tokenizer.path, work.base), prepared.spec.tokenizer.chat_template)
        lists = [_write_rejects(config, prepared, encoded, work)]
        if encoded.contamination is not None:
            lists.append(encoded.contamination.put(out))
        packed = pack(selected, out, executor, work.observer, damaged)

    dataset = Finished.in_store(out, commit(out, plan, packed, lists, selected.form.schema))
    put_card(out, dataset.manifest, work.observer)
    # Another run that shares the work may have written the report.
    needs_report = config.run.report and (config.run.shard is None or not out.exists(HTML))
    report = try_report(dataset, selected, work.base, work.observer) if needs_report else None
    return RunEnd(dataset, is_new=True, report=report)


def _leave_finished(config: RunConfig, work: Workspace, dataset: Finished) -> RunEnd:
    """Say that nothing is left to do. Then remove drafts and write the card, as the run that made the dataset may have
    been killed before it did so.
    """
    out = work.out
    work.observer.note(f"{out.url} is already finished; nothing to do")
    if config.run.report and not out.exists(HTML):
        work.observer.note(f"its report is missing; packtrain report {out.url} writes it")
    out.sweep()
    put_card(out, dataset.manifest, work.observer)
    return RunEnd(dataset, is_new=False)


def encode_inputs(config: RunConfig, prepared: Prepared, work: Workspace, executor: Executor) -> Encoded:
    """Encode what the cache lacks, report conversations that the mask cannot train as intended, and mark examples that
    share text with evaluation rows.

    Raises:
        InputError: an input has changed since it was scanned.
    """
    encoded = encode(prepared, work.parts, executor, work.observer, shared=config.run.shard is not None)
    executor.end_idle_workers()  # packing needs no tokenizer, which takes memory
    for sentence in describe_findings(config, prepared, encoded):
        work.observer.note(sentence)
    return compare_with_evaluation(config, prepared, encoded, work, executor)


def compare_with_evaluation(
    config: RunConfig, prepared: Prepared, encoded: Encoded, work: Workspace, executor: Executor
) -> Encoded:
    """Compare the examples with evaluation rows, and mark those that share text. Without `contamination` in the
    configuration, nothing is compared, and `encoded` is returned as it is.

    Raises:
        InputError: an input has changed since it was scanned; a row has token ids instead of text.
    """
    evaluation = prepared.evaluation
    if evaluation is None:
        return encoded
    all_hits = find_contamination(
        prepared.sources, prepared.joined, prepared.formats, evaluation, work.cache, executor, work.observer
    )
    contamination = contamination_of(all_hits.hits(), evaluation.payload(), all_hits.compared_examples())
    work.observer.note(contamination.sentence.removesuffix("."))
    places = tuple(
        replace(place, contaminated=keys) if keys else place
        for place, keys in zip(encoded.places, all_hits.contaminated_examples(), strict=True)
    )
    return replace(encoded, places=places, contamination=all_hits)


def select_documents(config: RunConfig, prepared: Prepared, encoded: Encoded, work: Workspace) -> Selected:
    """Decide what is kept of each document, and say what the user should know of that.

    Raises:
        InputError: nothing is left to pack; the message says what happened to the rows.
        ConfigError: `pack.align` or `pack.parallel` needs a padding token, and the tokenizer has none; or a weight
            needs too many copies.
    """
    pad_id = padding_id(config, prepared.spec.tokenizer)
    work.observer.begin("plan", 0, "")  # 0: how much work it is, is not known
    selected = select(config, encoded, work.scratch.root, pairs=prepared.pairs, pad_id=pad_id, sample=True)
    work.observer.end()
    if not selected.ledger.total().examples_packed:
        raise InputError(describe_nothing_left(config, prepared, encoded, selected))
    for sentence in describe_selection(config, selected.ledger, prepared.formats, pairs=prepared.pairs):
        work.observer.note(sentence)
    return selected


def _with_rejects(
    error: InputError, config: RunConfig, prepared: Prepared, encoded: Encoded, work: Workspace
) -> InputError:
    """The error of a run that ends before it packs, with the name of the file of its rejected rows, which is written
    here. If no row is rejected, the error stays as it is; and also if the folder has a plan, because then it may be
    another run's, whose file must stay.
    """
    if work.out.exists(PLAN) or not _write_rejects(config, prepared, encoded, work).bytes:
        return error
    return InputError(f"{error}. All rejected rows: {work.out.where(REJECTS)}")


def _write_rejects(config: RunConfig, prepared: Prepared, encoded: Encoded, work: Workspace) -> FileRecord:
    """Write rejects.jsonl, which is empty if no row is rejected."""
    rejects = list_rejects(config, prepared.joined, encoded.records)
    return put_record(work.out, REJECTS, rejects_jsonl(rejects))


def plan_of(config: RunConfig, prepared: Prepared) -> dict[str, Any]:
    """Return everything that the written bytes depend on, as JSON reads it back: lists instead of tuples."""
    tokenizer = prepared.spec.tokenizer
    packages = ["jinja2", "pyarrow", "tokenizers"]
    if any(source.where for source in config.sources):  # conditions that polars evaluates
        packages.append("polars")
    packages.append("packtrain")
    plan: dict[str, Any] = {
        "config": config.identity(),
        "formats": {name: form.payload() for name, form in prepared.formats.items()},
        "inputs": plan_inputs(prepared.files),
        "tokenizer": {"hash": tokenizer.hash, "template": tokenizer.template_hash, "pad_id": tokenizer.pad_id},
        # `as_given`, or what the template takes if the configuration leaves it open
        "encode": prepared.spec.payload() | {"call_arguments": prepared.choice.call_arguments},
    }
    if prepared.evaluation is not None:
        plan["evaluation"] = prepared.evaluation.payload()
    plan["versions"] = {name: version(name) for name in packages}
    # It is compared with the plan in a folder, which was read from JSON: a tuple there has become a list.
    read_back: dict[str, Any] = json.loads(json.dumps(plan))
    return read_back
