"""A report before packing: what a run would do with the data, and what other lengths would change.

Encodes, selects documents, and stops. Encoded parts stay in the cache for the run. The output folder is neither created
nor claimed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...schemas.config.config import RunConfig
from ...schemas.errors import InputError
from ...schemas.report import Made, Report, Sample, ShownRow
from ..configfile import load_config
from ..encode.driver import Encoded
from ..encode.notes import first_reject, reject_lines
from ..encode.prepared import Prepared
from ..inputs.formats import NoRowsError, what_fits, what_it_is
from ..observer import Observer, Silent
from ..pack.outcomes import mask_rejects
from ..pack.pack import Selected, select, split_names
from ..pack.segments import Segments
from ..pack.shard import cuts_through_turns
from ..pack.window_plan import pieces_of, windows
from ..report.collect import PAIRS, configuration_of, expected_packing, flow_of, make_report, training_of
from ..report.documents import ReadDocuments, read_documents
from ..report.lengths import candidates, choose
from ..report.options import ReportOptions, with_tokenizers_model
from ..report.overlap import overlap_of
from ..report.plan_sample import Sampled, sampled
from ..report.rejects import Rejects, rejects_among
from .advice import fate_of_rows, on_default_mask, selection_notes
from .prepare import require_room
from .run import encode_inputs, prepare_inputs
from .workers import Workspace, open_workers, open_workspace


def plan(
    config: "RunConfig | Mapping[str, Any] | str | Path",
    options: ReportOptions | None = None,
    *,
    rows: int | None = None,
    observer: Observer | None = None,
    base: Path | None = None,
) -> Report:
    """Report what a run would do, without packing anything.

    Args:
        rows: approximate number of rows to sample, evenly from all inputs; None for all rows.
        config, base, observer: as for `run`.

    Raises:
        ConfigError, InputError, TokenizerError, TemplateError: something that the user can fix.
        StoreError, IntegrityError, TaskError: a failure.
    """
    loaded, folder = load_config(config, base)
    options, observer = options or ReportOptions(), observer or Silent()
    options = with_tokenizers_model(options, loaded.tokenizer.path, folder)
    candidates(loaded, options)  # reject bad lengths before encoding
    if rows is None:
        return _report(_encoded(loaded, folder, observer), options)
    with sampled(loaded, folder, rows, observer) as sample:
        try:
            return _report(_encoded(sample.config, folder, observer, sample), options)
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
    here = {"shard": None} | ({"executor": "local"} if config.run.executor == "static" else {})
    config = config.model_copy(update={"run": config.run.model_copy(update=here)})
    work = open_workspace(config, base, observer)
    with open_workers(config.run, work) as executor:
        prepared, estimate = prepare_inputs(config, work, executor)
        # Space for the encoded parts only: four bytes per token. The factor 1.2 allows for a sample that is off by a
        # fifth.
        require_room(int(1.2 * 4 * estimate.missing_bytes * prepared.look.tokens_per_byte), "encoding", work.scratch)
        encoded = encode_inputs(config, prepared, estimate, work, executor)
    default_mask = on_default_mask(config, prepared.formats)
    for note in (*estimate.why_missing, *([default_mask] if default_mask else [])):
        observer.note(note)
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
        is_none = what_it_is(seen.prepared.files[0], one.reason, line=False)
        return f" The first: {one.file}: {one.reason}: {one.detail.removesuffix('.')}.{is_none}"
    return ""


def _rejects(seen: _Seen, most: int | None = None) -> Rejects:
    """The rejected rows, by their places in the original inputs."""
    lines = reject_lines(seen.prepared.joined, seen.encoded.records, mask_rejects(seen.config)).splitlines()
    rejects = rejects_among(lines[:most], seen.prepared.files)
    return rejects if seen.sample is None else seen.sample.true_rejects(rejects)


def _report(seen: _Seen, options: ReportOptions) -> Report:
    """The report, with everything that is known before packing.

    Raises:
        InputError: nothing would be packed.
    """
    config, work, pairs = seen.config, seen.work, seen.prepared.pairs
    work.observer.begin("read lengths", 0, "")
    selected = _select(seen)
    absent = dict[str, str]()
    choice = packing = flow = overlap = training = None
    kinds = {}
    if pairs:
        absent |= {"choice": PAIRS, "packing": PAIRS}
    else:
        documents = _documents(seen, options)
        choice, kinds = choose(documents.stats, config, options, documents.in_all), documents.kinds
        packing = expected_packing(choice, config.pack)
    if isinstance(selected, str):
        absent["flow"] = absent["training"] = f"The run would stop: {selected}."
    else:
        ledger = selected.ledger
        cuts = config.pack.strategy in ("bfd_split", "wrapped") and not pairs
        if not cuts and not pairs:
            _count_cuts(selected)
        _count_labels(selected)
        flow = flow_of(ledger, _rejects(seen))
        if (found := seen.encoded.contamination) is not None:
            action = str(config.identity()["decontaminate"]["action"])
            overlap = overlap_of(found.lines(), found.evaluation.payload(), ledger.total().examples_made, action)
        notes = [
            *([f"First tokens of the pieces that {config.pack.strategy} cuts still count as trained here."] * cuts),
            *(["Tokens will have loss weights; a plan counts every trained token once."] * selected.weighted),
        ]
        no_rows = list[ShownRow](), "There are no rows yet: a plan packs nothing."
        training = training_of(ledger, kinds, no_rows, config.identity(), notes)
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


def _sample(seen: _Seen) -> Sample | None:
    sample = seen.sample
    if sample is None:
        return None
    rows = sum(record.rows for record in seen.encoded.records)
    every = max(rows, round(sample.rows_estimated))
    return Sample(rows, rows if sample.exhaustive else every, sample.exhaustive)


def _documents(seen: _Seen, options: ReportOptions) -> ReadDocuments:
    encoded, sizes = seen.encoded, [record.counts.examples for record in seen.encoded.records]
    tokenizer, scratch = encoded.spec.tokenizer_json, seen.work.scratch.root
    found = read_documents(seen.config, encoded.places, sizes, tokenizer, scratch, options)
    rows = _sample(seen)
    if rows is not None and rows.rows:
        found = replace(found, in_all=round(found.in_all * rows.rows_estimated / rows.rows))
    if seen.sample is not None:  # its lines are not those of the inputs
        found = replace(found, stats=replace(found.stats, longest=()))
    return found


def _count_labels(selected: Selected) -> None:
    """Add to the ledger what the rows would train. Pieces that the strategy cuts are not known yet, so their first
    tokens count as trained.
    """
    sources = selected.config.sources
    heads = dict.fromkeys((source.name for source in sources), 0)
    for source, here in selected.table.slices():
        some = selected.table.documents.at(here)
        first = (some.asked_packed - some.labels).astype(np.int64) * some.copies
        heads[sources[source].name] += int(first.sum())
    for name, entry in selected.ledger.sources.items():
        asked = entry.asked_encoded + entry.asked_repeated - entry.asked_truncated - entry.asked_dropped
        entry.labels_head, entry.labels_trained = heads[name], asked - heads[name]
        entry.labels_not_asked = entry.tokens_packed - asked


def _count_cuts(selected: Selected) -> None:
    """Add to the ledger the cuts through trained turns that truncation and splitting make."""
    config, table = selected.config, selected.table
    segments = Segments.of(table, config)
    owners = table.origins.owners
    for split in split_names(config):
        for blocks in windows(table, split, config):
            pieces = pieces_of(table, selected.split_pieces, split, blocks)
            some = table.documents.at(pieces.documents)
            begins, ends = pieces.starts + pieces.repeated, pieces.starts + pieces.lengths
            cuts = cuts_through_turns(some, segments, begins, ends)
            for source, number in enumerate(np.bincount(owners[some.segment], weights=cuts).tolist()):
                selected.ledger.sources[config.sources[source].name].turns_cut += int(number)
