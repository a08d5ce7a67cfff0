"""A report before packing: what a run would do with the data, and what other lengths would change.

Encodes, selects documents, and stops. Encoded parts stay in the cache for the run. The output folder is neither created
nor claimed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from ...schemas.config.config import RunConfig
from ...schemas.errors import InputError
from ...schemas.ledger import Ledger
from ...schemas.ragged import starts_of
from ...schemas.report import FORMAT, BatchSize, Choice, Input, Report, Sample, Trust
from ...schemas.units import plural
from ...schemas.versions import version
from ...stages.arrays import view
from ...stages.mask.policy import Mask
from ..configfile import load_config
from ..contamination.hits_file import hit_lines
from ..encode.driver import Encoded
from ..encode.notes import first_reject, reject_lines
from ..encode.parts import EncodedPart
from ..encode.prepared import Prepared
from ..inputs.first_rows import what_it_is
from ..inputs.formats import NoRowsError, what_fits
from ..observer import Observer, Silent
from ..pack.accounts import fate_of_rows
from ..pack.outcomes import mask_rejects
from ..pack.pack import Selected, select, split_names
from ..pack.segments import Segments
from ..pack.shard import cuts_through_turns
from ..pack.window_plan import pieces_of, windows
from ..report.collect.flow import flow_of
from ..report.collect.lengths.choice import candidates, choose
from ..report.collect.lengths.encoded import read_stats
from ..report.collect.lengths.packed import LOOKED_INTO, Spread, Spreads, evenly, pair_spread, part_spread
from ..report.collect.model_shapes import with_tokenizers_model
from ..report.collect.overlap import overlap_of
from ..report.collect.rejects import rejects_among
from ..report.collect.saving import batch_size, expected_packing
from ..report.collect.shares import Heads, training_of
from ..report.collect.trust import configuration_of, stages_of
from ..report.options import ReportOptions
from ..report.sample.sampling import Sampled, sampled
from ..store.open import require_conditional
from .closing_advice import on_default_mask
from .disk_space import require_room
from .steps import decontaminate, encode_inputs, packtrain_version, prepare_inputs
from .workspace import Workspace, open_workers, open_workspace

_INPUTS = 20
"""Maximum number of input files that the report names."""
_PAIRS = "Preference pairs are not packed: each is one row."
_LATER = "A plan packs nothing; `packtrain run` does."


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
    candidates(loaded, options.lengths, options.shape.limit)  # reject bad lengths before encoding
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


@dataclass(frozen=True, slots=True)
class _Decided:
    """What a run would pack."""

    ledger: Ledger
    selected: Selected | None
    """The documents to pack; None if the run would stop."""
    refused: str | None = None
    """Why the run would stop; "" if it would not."""


def _encoded(config: RunConfig, base: Path, observer: Observer, sample: Sampled | None = None) -> _Seen:
    """Prepare and encode, as a run does."""
    # With a share (--shard) it would see only a part of the data.
    here = {"shard": None} | ({"executor": "local"} if config.run.executor == "static" else {})
    config = config.model_copy(update={"run": config.run.model_copy(update=here)})
    work = open_workspace(config, base, observer)
    require_conditional(work.cache)
    with open_workers(config.run, work) as executor:
        prepared, estimate = prepare_inputs(config, work, executor)
        # Space for the encoded parts only: four bytes per token. The factor 1.2 allows for a sample that is off by a
        # fifth.
        require_room(int(1.2 * 4 * estimate.missing_bytes * prepared.tokens_per_byte), "encoding", work.scratch)
        encoded = encode_inputs(config, prepared, estimate, work, executor)
        encoded = decontaminate(config, prepared, encoded, work, executor)
    default_mask = on_default_mask(config, prepared.formats)
    for note in (*estimate.why_missing, *([default_mask] if default_mask else [])):
        observer.note(note)
    return _Seen(config, work, prepared, encoded, sample)


def _decide(seen: _Seen) -> _Decided:
    """Decide what is kept of each document.

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
        return _Decided(Ledger(), None, str(error))
    total = selected.ledger.total()
    if not total.examples_packed:
        first, looked = first_reject(prepared.joined, encoded.records, mask_rejects(config)), ""
        if sample is not None and not sample.exhaustive:
            first, looked = _first_of(sample, seen), " in the sample"
        fits = "" if total.rows_used else what_fits(prepared.files, prepared.formats)
        fix = fits or (
            "Check each source's format and keys, truncate.max_length, the mask, and which rows the filters and "
            "limits leave"
        )
        raise InputError(f"nothing would be left to pack: of {fate_of_rows(total, looked)}.{first} {fix}")
    return _Decided(selected.ledger, selected)


def _first_of(sample: Sampled, seen: _Seen) -> str:
    """Describe the first rejected row of a sample, by its place in the original input."""
    files = seen.prepared.files
    lines = reject_lines(seen.prepared.joined, seen.encoded.records, mask_rejects(seen.config)).splitlines()
    for one in sample.true_rejects(rejects_among(lines[:1], files)).shown:
        is_none = what_it_is(files[0], one.reason, line=False)
        return f" The first: {one.file}: {one.reason}: {one.detail.removesuffix('.')}.{is_none}"
    return ""


def _report(seen: _Seen, options: ReportOptions) -> Report:
    """The report, with everything that is known before packing.

    Raises:
        InputError: nothing would be packed.
    """
    config, work, sample = seen.config, seen.work, seen.sample
    work.observer.begin("read lengths", 0, "")
    with work.timings.stage("read lengths"):
        decided = _decide(seen)
    absent = {"packing": _LATER}
    choice = batch = flow = overlap = training = packing = None
    if seen.prepared.pairs:
        absent = {
            "choice": f"{_PAIRS} `truncate.max_length` limits the length of a pair.",
            "packing": _PAIRS,
            "batch": f"{_PAIRS} A batch has as many pairs as rows.",
        }
    else:
        with work.timings.stage("compare lengths"):
            choice = _choice(seen, options)
        packing = expected_packing(choice, options, config.pack)
        if packing is not None:
            absent.pop("packing")
        batch = _batch(choice)
        if batch is None:
            absent["batch"] = "There are no packed rows."
    selected = decided.selected
    if selected is None:
        absent["flow"] = absent["training"] = f"The run would stop: {decided.refused}."
    else:
        reasons = mask_rejects(config)
        lines = reject_lines(seen.prepared.joined, seen.encoded.records, reasons).splitlines()
        rejects = rejects_among(lines, seen.prepared.files)
        flow = flow_of(decided.ledger, rejects if sample is None else sample.true_rejects(rejects))
        if seen.encoded.contamination is not None:
            asked = {"config": config.identity(), "evaluation": seen.encoded.contamination.evaluation.payload()}
            overlap = overlap_of(hit_lines(seen.encoded.contamination), asked, decided.ledger)
        cuts = config.pack.strategy in ("bfd_split", "wrapped") and not seen.prepared.pairs
        if not cuts and not seen.prepared.pairs:
            _count_cuts(selected)
        heads = Heads(_heads(selected), cuts, selected.weighted)
        training = training_of(decided.ledger, _spreads(seen, selected), heads=heads, policy=config.mask.policy)
    report = Report(
        format=FORMAT,
        kind="plan",
        name=work.out.url.rstrip("/").rpartition("/")[2] or work.out.url,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        packtrain=packtrain_version(),
        sample=_sample(seen),
        choice=choice,
        flow=flow,
        overlap=overlap,
        training=training,
        packing=packing,
        batch=batch,
        trust=_trust(seen, decided),
        absent=absent,
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


def _choice(seen: _Seen, options: ReportOptions) -> Choice:
    config, encoded = seen.config, seen.encoded
    sizes = [record.counts.examples for record in encoded.records]
    tokenizer = encoded.spec.tokenizer_json
    stats, every = read_stats(config, encoded.places, sizes, tokenizer, seen.work.scratch.root, options)
    seen_rows = _sample(seen)
    if seen_rows is not None and seen_rows.rows:
        every = round(every * seen_rows.rows_estimated / seen_rows.rows)
    if seen.sample is not None:  # its lines are not those of the inputs
        stats = replace(stats, longest=())
    return choose(stats, config, options, documents_in_all=every)


def _batch(choice: Choice) -> BatchSize | None:
    """Return batch sizes from the comparison of lengths, scaled up to all documents if only a sample was read."""
    known = "bfd" if choice.strategy == "none" else choice.strategy
    point = next(one for one in choice.points if (one.strategy, one.max_length) == (known, choice.max_length))
    more = choice.documents_in_all / max(choice.documents, 1)
    rows = point.pieces if choice.strategy == "none" else point.rows
    tokens, labels, examples = (round(one * more) for one in (point.tokens, point.labels, point.documents))
    return batch_size(max(round(rows * more), min(rows, 1)), tokens, labels, examples)


def _heads(selected: Selected) -> dict[str, int]:
    """By source, the supervised tokens that are first in a piece; pieces cut by the strategy are not included."""
    heads = dict.fromkeys((source.name for source in selected.config.sources), 0)
    for source, here in selected.table.slices():
        some = selected.table.documents.at(here)
        first = (some.asked_packed - some.labels).astype(np.int64) * some.copies
        heads[selected.config.sources[source].name] += int(first.sum())
    return heads


def _count_cuts(selected: Selected) -> None:
    """Add to the ledger the cuts through trained turns that truncation and splitting make."""
    config, table = selected.config, selected.table
    segments = Segments([place.path for place in table.places], table.origins.segments, Mask.of(config.mask))
    owners = np.repeat(table.origins.sources, table.origins.segments)
    for split in split_names(config):
        for blocks in windows(table, split, config):
            pieces = pieces_of(table, selected.split_pieces, split, blocks)
            some = table.documents.at(pieces.documents)
            begins, ends = pieces.starts + pieces.repeated, pieces.starts + pieces.lengths
            cuts = cuts_through_turns(some, segments, begins, ends)
            for source, number in enumerate(np.bincount(owners[some.segment], weights=cuts).tolist()):
                selected.ledger.sources[config.sources[source].name].turns_cut += int(number)


def _spreads(seen: _Seen, selected: Selected) -> Spreads:
    """Length statistics of the packed examples, from evenly chosen parts."""
    names = [source.name for source in seen.config.sources]
    out = Spreads({name: Spread() for name in names})
    copies = selected.table.documents.copies
    sizes = np.array([record.counts.examples for record in seen.encoded.records], dtype=np.int64)
    starts = starts_of(sizes)
    count, every = len(sizes), int(sizes.sum())
    taken = evenly(count, count if every <= LOOKED_INTO else max(1, count * LOOKED_INTO // every))
    out.exact = out.exact_runs = len(taken) == count
    for part in taken.tolist():
        place = seen.encoded.places[part]
        flags = copies[int(starts[part]) : int(starts[part] + sizes[part])] > 0
        spread = out.sources[names[place.source]]
        lengths = [np.diff(view(batch.column("input_ids").offsets)) for batch in EncodedPart(place.path).batches]
        spread.lengths.add(np.concatenate(lengths)[flags] if lengths else flags[:0])
        if seen.prepared.pairs:
            pair_spread(place.path, flags, spread)
        else:
            part_spread(place.path, flags, spread, Mask.of(seen.config.mask))
    return out


def _trust(seen: _Seen, decided: _Decided) -> Trust:
    sample, prepared, spec = seen.sample, seen.prepared, seen.encoded.spec
    files, packtrain = prepared.files, packtrain_version()
    inputs = [Input(file.source, file.shown, file.size, file.hash) for file in files]
    if sample is not None and not sample.exhaustive:
        inputs = sample.inputs
    bytes_in_all = sum(one.bytes for one in inputs)
    versions = {name: version(name) for name in ("jinja2", "pyarrow", "tokenizers")} | {"packtrain": packtrain}
    read = sum(file.size for file in files)
    return Trust(
        sentence=(
            f"Read from {plural(len(inputs), 'file')} by packtrain {packtrain}; a plan packs nothing. A run of the "
            "same configuration (which this page and its JSON contain) finds everything encoded in the cache."
            if sample is None or sample.exhaustive
            else f"Estimated from a sample of {plural(len(inputs), 'file')} by packtrain {packtrain}; a run of the "
            "same configuration (which this page and its JSON contain) reads everything."
        ),
        manifest=None,
        plan=None,
        tokenizer=prepared.tokenizer.hash,
        template=prepared.tokenizer.template_hash,
        engine=f"{spec.engine} {spec.engine_version}",
        versions=versions,
        stages=stages_of(seen.work.timings, decided.ledger.total(), read),
        inputs=inputs[:_INPUTS],
        inputs_in_all=len(inputs),
        bytes_in_all=bytes_in_all,
        configuration=configuration_of(sample.asked if sample is not None else seen.config, seen.work.base),
    )
