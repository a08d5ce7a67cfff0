"""What examples share with evaluation rows: from contamination.jsonl, or from the hits before a run."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from ...schemas.errors import StoreError
from ...schemas.report import Hit, Overlap, OverlapCount
from ...schemas.units import plural
from ...stages.overlap.examples import NEARLY, PART, WHOLE
from ..contamination.compare import NAME
from ..store.open_store import Store

MOST = 12
"""Hits that a report keeps."""
_STRENGTH = {PART: 0, NEARLY: 1, WHOLE: 2}


def overlap_of(lines: Iterable[Hit], evaluation: Mapping[str, Any], compared: int, action: str = "") -> Overlap:
    """The section, from all hits in the order of examples.

    Args:
        evaluation: what the plan says about the evaluation data.
        compared, action: see `Overlap`.
    """
    examples, every = 0, int(evaluation["counts"]["rows"])
    matches: dict[tuple[str, str], Counter[str]] = {}
    rows: dict[tuple[str, str], set[int]] = {}
    shown: list[Hit] = []
    for _, some in groupby(lines, lambda line: line.id):
        examples += 1
        strongest: dict[tuple[str, str], str] = {}
        for line in some:
            place = (line.source, line.evaluation)
            rows.setdefault(place, set()).add(line.evaluation_line)
            strongest[place] = max(strongest.get(place, PART), line.match, key=_strength)
            shown = sorted([*shown, line], key=lambda one: (-_strength(one.match), -one.share))[:MOST]
        for place, match in strongest.items():
            matches.setdefault(place, Counter())[match] += 1
    found = len({(file, line) for (_, file), lines in rows.items() for line in lines})
    each = [
        OverlapCount(*place, one.total(), one[WHOLE], one[NEARLY], one[PART], len(rows[place]))
        for place, one in matches.items()
    ]
    return Overlap(
        sentence=_sentence(each, examples, compared, found, every, evaluation["ngram"]),
        action=action,
        ngram=evaluation["ngram"],
        compared=compared,
        examples=examples,
        rows=every,
        rows_found=found,
        counts=each,
        shown=shown,
    )


def _sentence(each: list[OverlapCount], examples: int, compared: int, found: int, rows: int, ngram: int) -> str:
    if not examples:
        return f"No example shares {ngram} words in a row with any of {plural(rows, 'evaluation row')}."
    strong = sum(one.whole + one.near_whole for one in each)
    said = (
        f"{examples:,} of {plural(compared, 'example')} share text with {found:,} of {plural(rows, 'evaluation row')}"
    )
    return f"{said}{f', {strong:,} of them nearly all or all of a question or an answer' if strong else ''}."


def noted_hits(out: Store) -> Iterator[Hit]:
    """The lines of contamination.jsonl; a damaged line is left out, and `verify` says so.

    Raises:
        StoreError: the file is gone.
    """
    decoder = msgspec.json.Decoder(Hit)
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


def _strength(match: str) -> int:
    return _STRENGTH.get(match, 0)  # a file that others wrote may hold any word
