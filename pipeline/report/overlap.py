"""What examples share with evaluation rows: from contamination.jsonl, or from the hits before a run."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ...schemas.errors import StoreError
from ...schemas.ledger import Ledger
from ...schemas.report import Overlap, OverlapPiece, ShownOverlap
from ...schemas.units import plural
from ...stages.overlap.words import Pieces
from ..contamination.hits_file import NAME, TELLS_NOTHING, HitLine, OverlapSummary, summarise
from ..store.open import Store

MOST = 12
"""Pairs of texts that the page shows."""
_LONGEST = 1_000
"""Characters of one piece of text; a file that others wrote may hold any number."""


def overlap_of(lines: Iterable[HitLine], plan: Mapping[str, Any], ledger: Ledger) -> Overlap:
    """The section, from all hits.

    Args:
        plan: its `config` says what was to be done, and `evaluation` what was compared.
    """
    summary, section, evaluation = summarise(lines), plan["config"]["decontaminate"], plan["evaluation"]
    counts = evaluation["counts"]
    total = ledger.total()
    ignored = {
        "rows without text": counts["textless"],
        f"texts that are {TELLS_NOTHING}": counts["left_out"],
        "runs of words that more than ten texts have": counts["common"],
        "runs mostly of phrases that many texts have": counts["framed"],
        "runs mostly of numbers, single letters or repetitions": counts["plain"],
    }
    return Overlap(
        sentence=_sentence(summary, section, counts["rows"], total.examples_made),
        action=section["action"],
        ngram=section["ngram"],
        examples=summary.examples,
        counts=summary.counts,
        shown=[_shown(line) for line in summary.shown[:MOST]],
        files=[str(one["file"]) for one in evaluation["files"]],
        ignored={what: number for what, number in ignored.items() if number},
    )


def noted_hits(out: Store) -> Iterator[HitLine]:
    """The lines of contamination.jsonl; a damaged line is left out, and `verify` says so.

    Raises:
        StoreError: the file is gone.
    """
    decoder = msgspec.json.Decoder(HitLine)
    try:
        with Path(out.local(NAME)).open("rb") as file:
            for line in file:
                try:
                    yield decoder.decode(line)
                except (msgspec.MsgspecError, UnicodeDecodeError):
                    continue
    except OSError as error:
        raise StoreError(
            f"{out.where(NAME)} cannot be read: {error.strerror}; packtrain verify --repair makes it again"
        ) from error


def _sentence(summary: OverlapSummary, section: Mapping[str, Any], rows: int, examples: int) -> str:
    if not summary.examples:
        return f"No example shares {section['ngram']} words in a row with any of {plural(rows, 'evaluation row')}."
    strong = sum(one.whole + one.near_whole for one in summary.counts)
    said = summary.sentence(examples, rows)
    said += f", {strong:,} of them nearly all or all of a question or an answer" if strong else ""
    return f"{said}. They are {'left out' if section['action'] == 'drop' else 'kept, because `action` is `report`'}."


def _shown(line: HitLine) -> ShownOverlap:
    assert line.texts is not None
    texts = line.texts
    return ShownOverlap(
        line.id,
        line.source,
        line.evaluation,
        line.evaluation_line,
        line.evaluation_id,
        line.kind,
        line.match,
        line.share,
        _pieces(texts.example),
        texts.example_cut,
        _pieces(texts.evaluation),
        texts.evaluation_cut,
    )


def _pieces(pieces: Pieces) -> list[OverlapPiece]:
    return [OverlapPiece(text[:_LONGEST], shared) for text, shared in pieces[:40]]
