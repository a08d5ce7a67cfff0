"""Rows and examples that cannot be used: rejects.jsonl, the first one for a message, and how many a source has."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from ...schemas.config.config import RunConfig
from ...schemas.escape import escape_json
from ...schemas.report.flow import COUNTED_ONLY, Reject
from ...schemas.tables.reasons import OWN_REASON, REASONS, UNPROVED
from ...stages.mask.policy import Mask
from ...stages.tokenize.encode_counts import DROPPED, REJECTED
from ..inputs.blocks import InputFile
from ..inputs.source_formats import describe_damaged_lines
from .excerpt import excerpts
from .notes import BlockFindings, findings_by_block
from .parts import PartRecord


@dataclass(slots=True)
class RejectCounts:
    """How many rows and examples of a source cannot be used."""

    rows: int = 0
    """Rows that were read, without blank lines."""
    examples: int = 0
    """Examples of the rows that are not rejected, whether they were encoded or not."""
    rejected_rows: int = 0
    """Of `rows`."""
    rejected_examples: int = 0
    """Of `examples`: those that cannot be encoded, or that the mask leaves out because turns are not located."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Reason → how many rows and examples."""

    @property
    def share(self) -> float:
        """The share of the rows that is lost. Of a row with several examples, the share of the lost ones counts."""
        of_rows = self.rejected_rows / self.rows if self.rows else 0.0
        of_examples = self.rejected_examples / self.examples if self.examples else 0.0
        # Examples are counted of the rows that are left: 20 % of the rows and half of the examples of the others are
        # 0.2 + 0.8 · 0.5 = 60 %.
        return of_rows + (1 - of_rows) * of_examples


@dataclass(frozen=True, slots=True)
class _PlacedReject:
    """A reject and where its row is."""

    row: int
    """Number of the row in the block, from 0."""
    file: InputFile
    reject: Reject
    """Without an excerpt."""


def count_rejects(
    config: RunConfig, files: Sequence[InputFile], records: Sequence[PartRecord]
) -> dict[str, RejectCounts]:
    """How many rows and examples of each source cannot be used, as `rejects.jsonl` lists them.

    Args:
        files: as they were encoded.
        records: one per block, in the order of `files`.
    """
    rejects_of_source = {source.name: RejectCounts() for source in config.sources}
    findings = findings_by_block(config, files, (record.counts for record in records))
    for block, record in zip(findings, records, strict=True):
        rejects = rejects_of_source[block.file.source]
        rejects.rows += record.rows - record.blank
        # A block counts the examples that were encoded, and apart from them those that were dropped instead.
        rejects.examples += block.counts.examples + block.counts.total(DROPPED)
        for kind in _reject_kinds(block):
            # A block with two bad lines, and three conversations whose turns were not located, has by kind and reason
            # {"rows_rejected": {"invalid_json": 2}, "unproved": {"": 3}}: where the reason is "", the kind says it.
            reasons = block.counts.by_kind.get(kind, {})
            rejects.reasons.update({reason or kind: count for reason, count in reasons.items()})
            if kind == REJECTED:
                rejects.rejected_rows += block.counts.total(kind)
            else:
                rejects.rejected_examples += block.counts.total(kind)
    return rejects_of_source


def list_rejects(config: RunConfig, files: Sequence[InputFile], records: Iterable[PartRecord]) -> list[Reject]:
    """Rows that cannot be used, by file and line, with the reason, what to do, and an excerpt.

    Args:
        files: as they were encoded.
        records: one per block, in the order of `files`.

    Raises:
        InputError: a file is no longer what was scanned, or is not on this machine.
        IntegrityError: a block's copy in the cache is missing or damaged.
    """
    rejects = list[Reject]()
    for block in findings_by_block(config, files, (record.counts for record in records)):
        placed = list(_rejects_of(block))
        # Where a block has more rejects than are listed, the rest is one entry that only counts them. It stands behind
        # the last one listed, with its row, and shows no text.
        rows = {entry.row for entry in placed if entry.reject.reason != COUNTED_ONLY}
        texts = excerpts(block.block, rows) if rows else {}
        for entry in placed:
            excerpt = texts.get(entry.row, "") if entry.reject.reason != COUNTED_ONLY else ""
            rejects.append(msgspec.structs.replace(entry.reject, excerpt=excerpt))
    return rejects


def rejects_jsonl(rejects: Iterable[Reject]) -> bytes:
    """The content of rejects.jsonl."""
    return escape_json(b"".join(msgspec.json.encode(reject) + b"\n" for reject in rejects))


def describe_first_reject(
    config: RunConfig, files: Sequence[InputFile], records: Iterable[PartRecord], reason: str
) -> str:
    """Describe the first reject for a reason, for messages: `a.jsonl, line 3: invalid_json: …`; "" if there is none."""
    for block in findings_by_block(config, files, (record.counts for record in records)):
        for entry in _rejects_of(block):
            reject = entry.reject
            if reject.reason == reason:
                detail = reject.detail.removesuffix(".")
                explanation = describe_damaged_lines(entry.file, reason)  # or ""
                return f"{reject.file}, line {reject.line}: {reason}: {detail}.{explanation}"
    return ""


def _reject_kinds(block: BlockFindings) -> list[str]:
    """The kinds of `EncodeCounts` that are rejects: rows that cannot be used, examples that cannot be used, and, if the
    mask of the source needs turns, conversations whose turns were not located.
    """
    kinds = [REJECTED, DROPPED]
    if Mask.of(block.mask).needs_turns:
        kinds.append(UNPROVED)
    return kinds


def _rejects_of(block: BlockFindings) -> Iterator[_PlacedReject]:
    """Yield what is listed of a block, in the order of its rows, and then what is only counted."""
    kinds = _reject_kinds(block)
    listed = Counter[tuple[str, str]]()
    last_row = 0
    for place in block.counts.places:
        if place.kind in kinds:
            listed[place.kind, place.name] += 1
            last_row = place.line
            yield _placed_reject(block, place.line, place.name or place.kind, place.detail, place.sub)
    # A block notes 1,000 places at most for each kind and name, but counts all.
    for (kind, name), listed_count in listed.items():
        unlisted_count = block.counts.by_kind[kind][name] - listed_count
        if unlisted_count:
            detail = f"and {unlisted_count:,} more {name or kind}, counted only"
            yield _placed_reject(block, last_row, COUNTED_ONLY, detail)


def _placed_reject(block: BlockFindings, row: int, reason: str, detail: str, sub: int = -1) -> _PlacedReject:
    """A reject of a block's row, with the file and the line where that is.

    Args:
        row: its number in the block, from 0.
        sub: which example of the row; -1 for the whole row.
    """
    member, line = block.file.at(block.block, row)
    # A reason that no table has is one of a user's own reader.
    remedy = REASONS.get(reason, OWN_REASON)
    reject = Reject(
        source=member.source, file=member.shown, line=line, reason=reason, detail=detail, example=sub, remedy=remedy
    )
    return _PlacedReject(row, block.file, reject)
