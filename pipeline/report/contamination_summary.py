"""What examples share with evaluation rows: from contamination.jsonl, or from the hits before a run."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from heapq import nlargest
from itertools import groupby
from typing import Any

import msgspec

from ...schemas.errors import StoreError
from ...schemas.files.foreign import read_lines
from ...schemas.report import Contamination, ContaminationCount, Hit
from ...schemas.units import plural
from ..contamination import NAME
from ..store.open_store import Store

MOST = 12
"""Hits that a report keeps."""
_MUCH = 0.8
"""Share of an evaluation text that counts as most of it."""


def contamination_of(
    lines: Iterable[Hit], evaluation: Mapping[str, Any], compared: int, action: str = ""
) -> Contamination:
    """The section, from all hits in the order of examples.

    Args:
        evaluation: what the plan says about the evaluation data.
        compared, action: see `Contamination`.
    """
    examples, much, shown = 0, 0, list[Hit]()
    counts, most = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    rows = defaultdict[tuple[str, str], set[int]](set)
    problem, texts = "", set[tuple[str, int, str]]()
    for _, group in groupby(lines, lambda line: line.id):
        shares: dict[tuple[str, str], float] = {}
        for line in (some := list(group)):
            place = (line.source, line.evaluation)
            rows[place].add(line.evaluation_line)
            shares[place] = max(shares.get(place, 0.0), line.share)
        if (row := _row_of(some[0].id)) != problem:
            problem, texts = row, set()
        # Examples of one row, such as the solutions of a problem, share the same text; it is shown once.
        new = [line for line in some if (line.evaluation, line.evaluation_line, line.shared) not in texts]
        texts.update((line.evaluation, line.evaluation_line, line.shared) for line in new)
        shown = nlargest(MOST, [*shown, *new], key=lambda line: line.share)
        counts.update(shares.keys())
        most.update(place for place, share in shares.items() if share >= _MUCH)
        examples, much = examples + 1, much + (max(shares.values()) >= _MUCH)
    found = len({(file, line) for (_, file), some in rows.items() for line in some})
    every = plural(evaluation["counts"]["rows"], "evaluation row")
    sentence = f"No example shares {evaluation['ngram']} words in a row with any of {every}."
    if examples:
        whole = f", {much:,} of them most or all of a question or an answer" if much else ""
        sentence = f"{examples:,} of {plural(compared, 'example')} share text with {found:,} of {every}{whole}."
    return Contamination(
        sentence=sentence,
        action=action,
        examples=examples,
        counts=[ContaminationCount(*place, count, most[place], len(rows[place])) for place, count in counts.items()],
        shown=shown,
    )


def _row_of(example: str) -> str:
    """The row of an example, by its id: `apps/train:3` for `apps/train:3/1`."""
    return re.sub(r"(:\d+)/\d+$", r"\1", example)


def noted_hits(out: Store) -> Iterator[Hit]:
    """The lines of contamination.jsonl; a damaged line is left out, and `verify` says so.

    Raises:
        StoreError: the file is gone.
    """
    try:
        for line in read_lines(out.local(NAME)):
            with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                yield msgspec.json.decode(line, type=Hit)
    except OSError as error:
        raise StoreError(
            f"{out.where(NAME)} cannot be read: {error.strerror}; packtrain verify --repair makes it again"
        ) from error
