"""A report before packing: what a run would do with the data, and what other lengths would change.

Encodes, selects documents, plans rows, and stops. Encoded parts stay in the cache for the run. The output folder is
neither created nor claimed.

A sample is the first rows of evenly chosen blocks. All inputs are scanned for it, as for the run, so their rows are
counted exactly; only what is chosen is encoded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...schemas.config.config import RunConfig
from ...schemas.errors import ConfigError
from ...schemas.report.flow import Flow
from ...schemas.report.report import Made, Packing, Report, Sample, SplitFigures, Training
from ...stages.forecast.estimate import CANDIDATES
from ..configfile import load_config, settings_of
from ..encode.rejects import list_rejects
from ..inputs.blocks import Block, InputFile
from ..inputs.fetch import describe_data, write_data
from ..inputs.scan import scan_inputs
from ..observer import Kept, Observer
from ..pack.pack import count_rows
from ..report.collect import PAIRS, configuration_of, make_report, policies_of, some_rejects
from ..report.contamination_summary import contamination_of
from ..report.ledger_lines import supervision_of
from ..report.lengths.choice import compare_lengths
from ..report.sections import answers
from .prepare import prepare
from .rejection_limit import describe_many_rejects
from .run import encode_inputs, select_documents
from .workers import open_workers, open_workspace

if TYPE_CHECKING:
    import datasets

_PLACES = 32
"""Places of a source that rows are taken from, if it has enough blocks: neighbouring rows are often alike."""
_LEAST = 20
"""Minimum number of rows of a source, however small its share; a source without rows would look broken."""
_READ_ALL = 1.05
"""All rows are read if the inputs have at most this multiple of the requested rows."""


def plan(
    config: "RunConfig | Mapping[str, Any] | str | Path",
    lengths: Sequence[int] = CANDIDATES,
    *,
    rows: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    data: "Mapping[str, datasets.Dataset | datasets.DatasetDict | datasets.IterableDataset] | None" = None,
    observer: Observer | None = None,
    base: Path | None = None,
) -> Report:
    """Report what a run would do, without packing anything.

    >>> report = packtrain.plan("mix.yaml", lengths=(256, 512, 1024))
    >>> [point.max_length for point in report.choice.points]
    [256, 512, 1024]
    >>> report.packing.splits[0].rows > 0
    True

    Args:
        lengths: values of `max_length` to compare; the configured one is added.
        rows: approximate number of rows to encode, evenly from all inputs; None for all rows.
        config, overrides, data, base, observer: as for `run`.

    Raises:
        ConfigError, InputError, TokenizerError, TemplateError: something that the user can fix.
        StoreError, IntegrityError, TaskError: a failure.
    """
    data = data or {}
    loaded, folder = load_config(config, base, settings_of(overrides), {name: describe_data(name) for name in data})
    kept = Kept(observer or Observer())
    if rows is not None and rows < 1:
        raise ConfigError(f"--rows {rows}: give the number of rows to sample, such as 20000")
    # With a share (--shard) it would see only a part of the data.
    config = loaded.model_copy(update={"run": loaded.run.model_copy(update={"shard": None})})
    work = open_workspace(config, folder, kept)
    if data:
        config = write_data(config, data, work.scratch)
    sampled_files = None
    row_count = 0
    if rows is not None:
        kept.begin("load inputs", total=0, unit="")  # a total of 0 is an unknown one
        files = scan_inputs(config.sources, work.base, work.scratch)
        row_count = sum(file.lines for file in files)
        if row_count > rows * _READ_ALL:
            sampled_files = _sample_files(files, rows / row_count)
        kept.end()

    with open_workers(config.run, work) as executor:
        prepared = prepare(config, work, executor, files=sampled_files)  # None: it scans the inputs itself
        encoded = encode_inputs(config, prepared, work, executor)
    for problem in describe_many_rejects(config, prepared.joined, encoded.records):
        kept.note(f"a run would end before it packs: {problem}")
    if sampled_files is None:
        sample = None
        selected = select_documents(config, prepared, encoded, work)
    else:
        sample = Sample(sum(record.rows for record in encoded.records), row_count)
        # With an observer that ignores notes: what is true of a sample, such as that nothing is held out, may be wrong
        # of all rows.
        selected = select_documents(config, prepared, encoded, replace(work, observer=Observer()))

    kept.begin("read lengths", total=0, unit="")
    figures = count_rows(selected)
    scale = 1.0  # how many times more rows there are than were encoded
    if sample is not None and sample.rows:
        scale = sample.rows_in_all / sample.rows
    choice = compare_lengths(selected, work.base, figures, lengths, scale)
    packing = None
    absent = {"packing": PAIRS}  # why the report has no such section
    if selected.packs:
        packing = _packing(config, figures, sample, pairs=selected.pairs)
        absent = {}
    total = selected.ledger.total()
    contamination = None
    if encoded.contamination is not None:
        contamination = contamination_of(
            encoded.contamination.hits(),
            encoded.contamination.evaluation.payload(),
            total.examples_made,
            action=str(config.identity()["contamination"]["action"]),
        )
    rejects = some_rejects(list_rejects(config, prepared.joined, encoded.records))
    report = make_report(
        "plan",
        work.out.url,
        absent,
        sample,
        choice=choice,
        flow=Flow(supervision_of(total), dict(selected.ledger.sources), rejects, rejects_file=None),
        contamination=contamination,
        training=Training(
            policies_of(config.identity()), rows=[], rows_absent="There are no rows yet: a plan packs nothing."
        ),
        packing=packing,
        made=Made(manifest=None, configuration=configuration_of(config, work.base)),
    )
    kept.end()
    return replace(report, notes=[*kept.notes, *answers(report)])


def _sample_files(files: Sequence[InputFile], share: float) -> list[InputFile]:
    """The files with only the first rows of evenly chosen blocks: about a share of each source's rows.

    Args:
        files: in the order of sources.
        share: of the rows to take, 0 to 1; a source has at least `_LEAST` rows all the same.
    """
    sampled = list[InputFile]()
    for _, group in groupby(files, key=lambda file: file.source):
        source_files = list(group)
        source_rows = sum(file.lines for file in source_files)
        sample_size = min(max(share * source_rows, _LEAST), source_rows)
        # So many rows are taken together that they come from `_PLACES` places. For 320 of 10,000 rows, these are 10 at
        # a time: the first 10 of a block, about every 312 rows.
        rows_together = max(sample_size / _PLACES, 1.0)
        rows_due = rows_together / 2  # the first place is after half a distance, so the last is not at the end
        for file in source_files:
            chosen = list[Block]()
            for block in file.blocks:
                rows_due += block.lines * sample_size / source_rows
                if rows_due >= rows_together:
                    count = min(round(rows_due), block.lines)
                    chosen.append(block if count == block.lines else block.head(count))
                    rows_due -= count
            if chosen:
                sampled.append(replace(file, blocks=tuple(chosen)))
    return sampled


def _packing(config: RunConfig, figures: Sequence[SplitFigures], sample: Sample | None, *, pairs: bool) -> Packing:
    """What the run would pack; of a sample, scaled up to all rows."""
    splits = list(figures)
    if sample is not None:
        scale = sample.rows_in_all / max(sample.rows, 1)
        splits = [
            replace(
                split,
                bound=0,  # not known: a bound of the sample's rows does not grow with the rows
                rows=round(split.rows * scale),
                tokens=round(split.tokens * scale),
                labels=round(split.labels * scale),
                pieces=round(split.pieces * scale),
                padding=round(split.padding * scale),
            )
            for split in figures
        ]
    return Packing(config.row_length, config.pack.strategy, splits, padded_for=config.pack.padded_for, pairs=pairs)
