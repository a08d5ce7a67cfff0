"""What examples share with evaluation rows: from contamination.jsonl, or from the hits before a run; and how a report
shows it.
"""

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
from ...schemas.report.evaluation_hits import Contamination, ContaminationCount, Hit
from ...schemas.units import plural, share
from ..contamination import HITS_FILE
from ..store.open_store import Store
from .grid import Grid, Section, clipped

QUESTION = "Is the evaluation data in it?"
_COUNTS = 40
"""Maximum number of rows of a table with one row a source and evaluation file."""
_SHOWN_HITS = 12
"""Hits that a report keeps."""
_MOST_OF_TEXT = 0.8
"""Share of an evaluation text that counts as most of it."""


def contamination_of(
    hits: Iterable[Hit], evaluation: Mapping[str, Any], compared: int, action: str = ""
) -> Contamination:
    """The section, from all hits in the order of examples.

    Args:
        evaluation: what the plan says about the evaluation data.
        compared: how many examples were compared.
        action: see `Contamination`.
    """
    examples = 0
    examples_with_most = 0  # that have most or all of an evaluation text
    # By (source, evaluation file):
    example_counts: Counter[tuple[str, str]] = Counter()
    counts_with_most: Counter[tuple[str, str]] = Counter()
    evaluation_rows: dict[tuple[str, str], set[int]] = defaultdict(set)
    shown: list[Hit] = []
    current_row = ""
    texts_of_row: set[tuple[str, int, str]] = set()
    for example, group in groupby(hits, lambda hit: hit.id):
        example_hits = list(group)
        shares: dict[tuple[str, str], float] = {}
        for hit in example_hits:
            pair = (hit.source, hit.evaluation)
            evaluation_rows[pair].add(hit.evaluation_line)
            shares[pair] = max(shares.get(pair, 0.0), hit.share)
        examples += 1
        examples_with_most += max(shares.values()) >= _MOST_OF_TEXT
        example_counts.update(shares.keys())
        counts_with_most.update(pair for pair, text_share in shares.items() if text_share >= _MOST_OF_TEXT)
        # Examples of one row, such as the solutions of a problem, share the same text; it is shown once.
        if _row_of(example) != current_row:
            current_row = _row_of(example)
            texts_of_row = set()
        candidates = [hit for hit in example_hits if _text_of(hit) not in texts_of_row]
        texts_of_row.update(_text_of(hit) for hit in candidates)
        shown = nlargest(_SHOWN_HITS, [*shown, *candidates], key=lambda hit: hit.share)
    counts = []
    for (source, file), count in example_counts.items():
        rows = len(evaluation_rows[source, file])
        counts.append(ContaminationCount(source, file, count, counts_with_most[source, file], rows))
    return Contamination(
        sentence=_describe(examples, examples_with_most, compared, evaluation_rows, evaluation),
        action=action,
        examples=examples,
        counts=counts,
        shown=shown,
    )


def _describe(
    examples: int,
    examples_with_most: int,
    compared: int,
    evaluation_rows: Mapping[tuple[str, str], set[int]],
    evaluation: Mapping[str, Any],
) -> str:
    all_rows = plural(evaluation["counts"]["rows"], "evaluation row")
    if not examples:
        return f"No example shares {evaluation['ngram']} words in a row with any of {all_rows}."
    # A row that several sources share text with counts once.
    shared_rows = {(file, line) for (_, file), lines in evaluation_rows.items() for line in lines}
    most_clause = ""
    if examples_with_most:
        most_clause = f", {examples_with_most:,} of them most or all of a question or an answer"
    shared = f"{examples:,} of {plural(compared, 'example')} share text with {len(shared_rows):,} of {all_rows}"
    return f"{shared}{most_clause}."


def _text_of(hit: Hit) -> tuple[str, int, str]:
    """What two hits have in common that show the same text."""
    return hit.evaluation, hit.evaluation_line, hit.shared


def _row_of(example: str) -> str:
    """The row of an example, by its id: `apps/train:3` for `apps/train:3/1`."""
    return re.sub(r"(:\d+)/\d+$", r"\1", example)


def noted_hits(out: Store) -> Iterator[Hit]:
    """The lines of contamination.jsonl; a damaged line is left out, and `verify` says so.

    Raises:
        StoreError: the file is gone.
    """
    try:
        for line in read_lines(out.local(HITS_FILE)):
            with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                yield msgspec.json.decode(line, type=Hit)
    except OSError as error:
        raise StoreError(
            f"{out.where(HITS_FILE)} cannot be read: {error.strerror}; packtrain verify --repair makes it again"
        ) from error


def contamination_section(contamination: Contamination) -> Section:
    """Examples that share text with evaluation rows, by source and evaluation file."""
    rows = [
        [count.source, count.evaluation, *(f"{value:,}" for value in (count.examples, count.most, count.rows))]
        for count in contamination.counts[:_COUNTS]
    ]
    head = ("source", "evaluation file", "examples", "most or all of it", "evaluation rows")
    grid = Grid("Examples that share text", head, rows, text_columns=2)
    shown = [
        [hit.id, f"{hit.evaluation}, line {hit.evaluation_line:,}", share(hit.share), hit.kind, clipped(hit.shared)]
        for hit in contamination.shown
    ]
    words = ("example", "evaluation row", "share of it", "of its", "the longest run of words that both share")
    largest = Grid("Some of them, the largest share first", words, shown, text_columns=5)
    tables = [table for table in (grid, largest) if table.rows]
    sentence = contamination.sentence
    if contamination.examples:
        actions = {"drop": " They are left out.", "report": " They are kept, because `action` is `report`."}
        sentence += actions.get(contamination.action, "")
    return Section("contamination", QUESTION, sentence, tables)
