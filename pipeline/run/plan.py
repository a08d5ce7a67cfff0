"""A report before packing: what a run would do with the data, and what other lengths would change.

Encodes, selects documents, plans rows, and stops. Encoded parts stay in the cache for the run. The output folder is
neither created nor claimed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...schemas.config.config import RunConfig
from ...schemas.errors import InputError
from ...schemas.report import KindCount, Made, Packing, Report, Sample, ShownRow, SplitFigures
from ...stages.forecast.sweep import CANDIDATES
from ..configfile import load_config
from ..encode.driver import Encoded
from ..encode.notes import first_reject, reject_lines
from ..encode.prepared import Prepared
from ..inputs.source_formats import NoRowsError, what_fits, what_it_is
from ..observer import Observer, Silent
from ..pack.outcomes import mask_rejects
from ..pack.pack import Selected, count_rows, select
from ..report.collect import PAIRS, choice_of, configuration_of, flow_of, make_report, training_of
from ..report.document_lengths import ReadDocuments, read_documents
from ..report.overlap import overlap_of
from ..report.plan_sample import Sampled, sampled
from ..report.rejects import Rejects, rejects_among
from .advice import fate_of_rows, on_default_mask, selection_notes
from .run import encode_inputs, prepare_inputs
from .workers import Workspace, open_workers, open_workspace


def plan(
    config: "RunConfig | Mapping[str, Any] | str | Path",
    lengths: Sequence[int] = CANDIDATES,
    *,
    rows: int | None = None,
    observer: Observer | None = None,
    base: Path | None = None,
) -> Report:
    """Report what a run would do, without packing anything.

    Args:
        lengths: those to compare; the configured one is added.
        rows: approximate number of rows to sample, evenly from all inputs; None for all rows.
        config, base, observer: as for `run`.

    Raises:
        ConfigError, InputError, TokenizerError, TemplateError: something that the user can fix.
        StoreError, IntegrityError, TaskError: a failure.
    """
    loaded, folder = load_config(config, base)
    observer = observer or Silent()
    if rows is None:
        return _report(_encoded(loaded, folder, observer), lengths)
    with sampled(loaded, folder, rows, observer) as sample:
        try:
            return _report(_encoded(sample.config, folder, observer, sample), lengths)
        except NoRowsError as error:
            raise sample.true_place(error) from None


@dataclass(frozen=True, slots=True)
class _Seen:
    """The encoded data: all of it, or a sample."""

    config: RunConfig
    work: Workspace
    prepared: Prepared
    encoded: Encoded
    sample: Sampled | None


def _encoded(config: RunConfig, base: Path, observer: Observer, sample: Sampled | None = None) -> _Seen:
    """Prepare and encode, as a run does."""
    # With a share (--shard) it would see only a part of the data.
    here = {"shard": None}
    config = config.model_copy(update={"run": config.run.model_copy(update=here)})
    work = open_workspace(config, base, observer)
    with open_workers(config.run, work) as executor:
        prepared, estimate = prepare_inputs(config, work, executor)
        encoded = encode_inputs(config, prepared, estimate, work, executor)
    if default_mask := on_default_mask(config, prepared.formats):
        observer.note(default_mask)
    return _Seen(config, work, prepared, encoded, sample)


def _select(seen: _Seen) -> Selected | str:
    """Decide what is kept of each document; or say why a run would stop.

    Raises:
        InputError: nothing would be packed.
    """
    config, prepared, encoded, sample = seen.config, seen.prepared, seen.encoded, seen.sample
    try:
        selected = select(config, encoded, seen.work.scratch.root, pairs=prepared.pairs)
    except InputError as error:
        if config.truncate.overlong != "error":
            raise
        # The comparison of lengths can still show a length with which the run would not stop.
        seen.work.observer.note(str(error))
        return str(error)
    whole, total = sample is None or sample.exhaustive, selected.ledger.total()
    if not total.examples_packed:
        first = first_reject(prepared.joined, encoded.records, mask_rejects(config)) if whole else _first_of(seen)
        fix = (not total.rows_used and what_fits(prepared.files, prepared.formats)) or (
            "Check each source's format and keys, truncate.max_length, the mask, and which rows the filters and "
            "limits leave"
        )
        fate = fate_of_rows(total, "" if whole else " in the sample")
        raise InputError(f"nothing would be left to pack: of {fate}.{first} {fix}")
    for said in selection_notes(config, selected) if whole else ():
        seen.work.observer.note(said)
    return selected


def _first_of(seen: _Seen) -> str:
    """Describe the first rejected row of a sample, by its place in the original input."""
    for one in _rejects(seen, 1).shown:
        is_none = what_it_is(seen.prepared.files[0], one.reason)
        return f" The first: {one.file}: {one.reason}: {one.detail.removesuffix('.')}.{is_none}"
    return ""


def _rejects(seen: _Seen, most: int | None = None) -> Rejects:
    """The rejected rows, by their places in the original inputs."""
    lines = reject_lines(seen.prepared.joined, seen.encoded.records, mask_rejects(seen.config)).splitlines()
    rejects = rejects_among(lines[:most], seen.prepared.files)
    return rejects if seen.sample is None else seen.sample.true_rejects(rejects)


def _report(seen: _Seen, lengths: Sequence[int]) -> Report:
    """The report, with everything that is known before packing.

    Raises:
        InputError: nothing would be packed.
    """
    config, work, pairs = seen.config, seen.work, seen.prepared.pairs
    work.observer.begin("read lengths", 0, "")
    selected = _select(seen)
    absent = dict[str, str]()
    choice = packing = flow = overlap = training = None
    kinds = list[KindCount]()
    figures = [] if isinstance(selected, str) else count_rows(selected)
    if pairs:
        absent |= {"choice": PAIRS, "packing": PAIRS}
    else:
        documents, train = _documents(seen), next((one for one in figures if one.split == "train"), None)
        choice = choice_of(documents, lengths, train)
        kinds = documents.kinds
    if isinstance(selected, str):
        absent |= dict.fromkeys(("flow", "training", "packing"), f"The run would stop: {selected}.")
    else:
        ledger = selected.ledger
        packing = None if pairs else _packing(seen, figures)
        flow = flow_of(ledger, _rejects(seen))
        if (found := seen.encoded.contamination) is not None:
            action = str(config.identity()["decontaminate"]["action"])
            overlap = overlap_of(found.lines(), found.evaluation.payload(), ledger.total().examples_made, action)
        no_rows = list[ShownRow](), "There are no rows yet: a plan packs nothing."
        training = training_of(kinds, no_rows, config.identity())
    spec = seen.encoded.spec
    configuration = configuration_of(seen.sample.asked if seen.sample is not None else config, work.base)
    report = make_report(
        "plan",
        work.out.url,
        absent,
        _sample(seen),
        choice=choice,
        flow=flow,
        overlap=overlap,
        training=training,
        packing=packing,
        made=Made(None, f"{spec.engine} {spec.engine_version}", configuration),
    )
    work.observer.end()
    return report


def _packing(seen: _Seen, figures: Sequence[SplitFigures]) -> Packing:
    """What the run would pack; of a sample, scaled up to all rows."""
    pack, sample = seen.config.pack, _sample(seen)
    estimated = sample is not None and not sample.exhaustive
    splits = list(figures)
    if sample is not None and estimated:
        more = sample.rows_estimated / max(sample.rows, 1)
        counted = ("rows", "tokens", "labels", "pieces", "padding")
        splits = [replace(one, bound=0, **{key: round(getattr(one, key) * more) for key in counted}) for one in figures]
    length = seen.config.truncate.max_length
    return Packing(length, pack.strategy, splits, pack.padded_for, estimated=estimated)


def _sample(seen: _Seen) -> Sample | None:
    sample = seen.sample
    if sample is None:
        return None
    rows = sum(record.rows for record in seen.encoded.records)
    every = max(rows, round(sample.rows_estimated))
    return Sample(rows, rows if sample.exhaustive else every, sample.exhaustive)


def _documents(seen: _Seen) -> ReadDocuments:
    encoded, sizes = seen.encoded, [record.counts.examples for record in seen.encoded.records]
    tokenizer, scratch = encoded.spec.tokenizer_json, seen.work.scratch.root
    found = read_documents(seen.config, seen.work.base, encoded.places, sizes, tokenizer, scratch)
    rows = _sample(seen)
    if rows is not None and rows.rows:
        found = replace(found, in_all=round(found.in_all * rows.rows_estimated / rows.rows))
    if seen.sample is not None:  # its lines are not those of the inputs
        found = replace(found, stats=replace(found.stats, longest=()))
    return found
