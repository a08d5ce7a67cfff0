"""Rows and examples that cannot be used: rejects.jsonl, the first one for a message, and how many a source has."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from ...schemas.config.config import RunConfig
from ...schemas.escape import escape_json
from ...schemas.report import Reject
from ...schemas.tables.reasons import OWN_REASON, REASONS, UNPROVED
from ...stages.mask.policy import Mask
from ...stages.tokenize.encode_counts import DROPPED, REJECTED
from ..inputs.blocks import Block, InputFile
from ..inputs.excerpt import excerpts
from ..inputs.source_formats import what_it_is
from .notes import Seen, seen_blocks
from .parts import PartRecord

_COUNTED = "more"
"""The reason of a line that counts rejects which are not listed."""


@dataclass(slots=True)
class Rejected:
    """How many rows and examples of a source cannot be used."""

    rows: int = 0
    """Rows that were read, without blank lines."""
    examples: int = 0
    """Examples of the rows that can be used."""
    rejected_rows: int = 0
    rejected_examples: int = 0
    """Of `examples`: those that cannot be encoded, or that the mask leaves out because turns are not located."""
    reasons: Counter[str] = field(default_factory=Counter)

    @property
    def share(self) -> float:
        """The share of the rows that is lost; a row that gives several examples counts by the share of them."""
        of_rows = self.rejected_rows / self.rows if self.rows else 0.0
        of_examples = self.rejected_examples / self.examples if self.examples else 0.0
        return of_rows + (1 - of_rows) * of_examples


def count_rejected(config: RunConfig, files: Sequence[InputFile], records: Sequence[PartRecord]) -> dict[str, Rejected]:
    """How many rows and examples of each source cannot be used, as `rejects.jsonl` lists them.

    Args:
        files: as they were encoded.
        records: one per block, in the order of `files`.
    """
    counts = {source.name: Rejected() for source in config.sources}
    for block, record in zip(seen_blocks(config, files, (one.counts for one in records)), records, strict=True):
        source, found = counts[block.file.source], block.counts.found
        source.rows += record.rows - record.blank
        source.examples += block.counts.examples + block.counts.of(DROPPED)
        for kind in _kinds(block):
            number = block.counts.of(kind)
            source.reasons.update({name or kind: count for name, count in found.get(kind, {}).items()})
            if kind == REJECTED:
                source.rejected_rows += number
            else:
                source.rejected_examples += number
    return counts


def reject_lines(config: RunConfig, files: Sequence[InputFile], records: Iterable[PartRecord]) -> bytes:
    """Return the content of rejects.jsonl: rows that cannot be used, by file and line, with the reason, what to do, and
    an excerpt.

    Args:
        files: as they were encoded.
        records: one per block, in the order of `files`.

    Raises:
        InputError, IntegrityError: see `excerpts`.
    """
    lines = list[bytes]()
    for block in seen_blocks(config, files, (record.counts for record in records)):
        rejects = list(_rejects_of(block))
        texts = excerpts(block.block, {row for row, _, one in rejects if one.reason != _COUNTED}) if rejects else {}
        for row, _, reject in rejects:
            excerpt = texts.get(row, "") if reject.reason != _COUNTED else ""
            lines.append(msgspec.json.encode(msgspec.structs.replace(reject, excerpt=excerpt)) + b"\n")
    return escape_json(b"".join(lines))


def first_reject(config: RunConfig, files: Sequence[InputFile], records: Iterable[PartRecord], reason: str) -> str:
    """Describe the first reject for a reason, for messages: `a.jsonl, line 3: invalid_json: …`; "" if there is none."""
    for block in seen_blocks(config, files, (record.counts for record in records)):
        for _, file, reject in _rejects_of(block):
            if reject.reason == reason:
                detail = reject.detail.removesuffix(".")
                return f"{reject.file}, line {reject.line}: {reason}: {detail}.{what_it_is(file, reason)}"
    return ""


def _kinds(block: Seen) -> tuple[str, ...]:
    """The kinds of places that are rejects: conversations without located turns only if the mask needs the turns."""
    return (REJECTED, DROPPED, *((UNPROVED,) if Mask.of(block.mask).needs_turns else ()))


def _rejects_of(block: Seen) -> Iterator[tuple[int, InputFile, Reject]]:
    """Yield (row of the block, its file, reject) of what is listed of a block, and of what is only counted."""
    kinds = _kinds(block)
    listed = Counter[tuple[str, str]]()
    last = 0
    for kind, name, row, sub, detail in block.counts.places:
        if kind in kinds:
            listed[kind, name] += 1
            last = row
            yield row, *_reject(block.file, block.block, row, name or kind, detail, sub)
    for (kind, name), count in listed.items():
        if more := block.counts.found[kind][name] - count:
            detail = f"and {more:,} more {name or kind}, counted only"
            yield last, *_reject(block.file, block.block, last, _COUNTED, detail)


def _reject(
    group: InputFile, block: Block, row: int, reason: str, detail: str, sub: int = -1
) -> tuple[InputFile, Reject]:
    file, line = group.at(block, row)
    return group, Reject(file.source, file.shown, line, reason, detail, sub, REASONS.get(reason, OWN_REASON))
