"""Ends a run of which too many rows cannot be used: a source that is read in the wrong way, or damaged."""

from collections.abc import Iterator, Sequence

from ...schemas.config.config import RunConfig
from ...schemas.errors import InputError
from ...schemas.tables.reasons import OWN_REASON, REASONS
from ...schemas.units import plural, share
from ..encode.parts import PartRecord
from ..encode.rejects import RejectCounts, count_rejects, describe_first_reject
from ..inputs.blocks import InputFile

DEFAULT_SHARE = 0.1
"""The share of the rows of a source that may be rejected if `max_rejected` is not configured and the source has more
than `SMALL_ROWS` rows. Of a smaller source, all may be."""
SMALL_ROWS = 100
"""Of so few rows, a few rejected ones are a large share, and end no run."""
_OTHER_FORMAT = ("missing_key", "wrong_type")
"""Reasons that rows of another format have."""


def require_few_rejects(config: RunConfig, files: Sequence[InputFile], records: Sequence[PartRecord]) -> None:
    """Raise if more rows of a source are rejected than `max_rejected` allows.

    Args:
        files: as they were encoded.
        records: one per block, in the order of `files`.

    Raises:
        InputError: names each such source, with its most frequent reason and the first row that has it.
    """
    problems = list(describe_many_rejects(config, files, records))
    if problems:
        raise InputError("\n".join(problems))


def describe_many_rejects(
    config: RunConfig, files: Sequence[InputFile], records: Sequence[PartRecord]
) -> Iterator[str]:
    """Yield a sentence about each source of which more rows are rejected than `max_rejected` allows.

    Args:
        files: as they were encoded.
        records: one per block, in the order of `files`.
    """
    counts = count_rejects(config, files, records)
    for number, source in enumerate(config.sources):
        rejected = counts[source.name]
        limit = config.max_rejected_of(source)
        if limit is None:  # not configured
            limit = DEFAULT_SHARE if rejected.rows > SMALL_ROWS else 1.0  # 1.0 allows all
        if rejected.share <= limit:
            continue
        source_files = [file for file in files if file.source == source.name]
        sources_of_records = [file.source for file in files for _ in file.blocks]  # a record for each block
        source_records = [
            record for name, record in zip(sources_of_records, records, strict=True) if name == source.name
        ]
        first = describe_first_reject(config, source_files, source_records, _most_frequent(rejected))
        key = f"sources.{number}.max_rejected" if len(config.sources) > 1 else "max_rejected"
        # A file without members is one file; of small files that share a block, the members are counted.
        file_count = sum(len(file.members) or 1 for file in source_files)
        yield _describe(source.name, rejected, limit, first, key, several_files=file_count > 1)


def _most_frequent(rejected: RejectCounts) -> str:
    """The most frequent reason; of equally frequent ones, the first by name."""
    return max(sorted(rejected.reasons), key=lambda reason: rejected.reasons[reason])


def _describe(source: str, rejected: RejectCounts, limit: float, first: str, key: str, *, several_files: bool) -> str:
    """A sentence about a source with too many rejects.

    Args:
        first: the first reject for the most frequent reason, in words.
        limit: the share of the rows that may be rejected.
        key: of the limit in the configuration, such as `sources.0.max_rejected`.
        several_files: whether the source has more than one file.
    """
    reason = _most_frequent(rejected)
    remedy = "Repair or leave out these rows"
    if several_files and reason in _OTHER_FORMAT:
        remedy = f"Files of another format are a source of their own (--input several times). {remedy}"
    number = rejected.rejected_rows + rejected.rejected_examples
    # A row may give several examples, of which only some are lost.
    unit = " rows or examples" if rejected.rejected_examples else ""
    return (
        f"source {source}: of {plural(rejected.rows, 'row')}, {number:,}{unit} cannot be used "
        f"({share(rejected.share)}), but max_rejected allows {share(limit)}. Most often {reason} "
        f"({rejected.reasons[reason]:,}): {REASONS.get(reason, OWN_REASON)} The first: {first} {remedy}, or allow "
        f"more: {key}=1 allows all"
    )
