"""What examples share with evaluation rows, and how a report shows it. The hits are those of contamination.jsonl; those
of a plan, which writes no file, come straight from the comparison.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
"""Maximum number of hits that a report shows."""
# Less than all of it: a problem of which some words were changed is the same problem.
_MOST_OF_TEXT = 0.8
"""Share of an evaluation text that counts as most of it."""


_SourceAndFile = tuple[str, str]
"""A source, and an evaluation file."""


class _Tally:
    """Counts the examples that share text with evaluation rows, by source and evaluation file."""

    def __init__(self) -> None:
        self.examples = 0
        """Examples that share any text."""
        self.examples_with_most = 0
        """Examples that have most or all of an evaluation text."""
        self.example_counts = Counter[_SourceAndFile]()
        """Examples of a source that share text with an evaluation file."""
        self.counts_with_most = Counter[_SourceAndFile]()
        """Those of them that have most or all of a text."""
        self.evaluation_rows = defaultdict[_SourceAndFile, set[int]](set)
        """Lines of an evaluation file of which examples of a source share text."""

    def add(self, example_hits: Sequence[Hit]) -> None:
        """Count one example, by all of its hits.

        Hits of 30 % and 90 % in gsm8k.jsonl and of 20 % in mmlu.jsonl count the example once for each file, and for
        gsm8k.jsonl also among those with most of a text.
        """
        # An example may share text with many rows of a file, and with question and answer of one, but each source and
        # file counts it once. Keys of a mapping, and no set, keep the order of the hits, in which a report lists them.
        pairs = dict.fromkeys((hit.source, hit.evaluation) for hit in example_hits)
        pairs_with_most = dict.fromkeys(
            (hit.source, hit.evaluation) for hit in example_hits if hit.share >= _MOST_OF_TEXT
        )
        for hit in example_hits:
            self.evaluation_rows[hit.source, hit.evaluation].add(hit.evaluation_line)
        self.example_counts.update(pairs.keys())
        self.counts_with_most.update(pairs_with_most.keys())
        self.examples += 1
        if pairs_with_most:
            self.examples_with_most += 1

    def counts(self) -> list[ContaminationCount]:
        """A count for each source and evaluation file, in the order in which they were met."""
        return [
            ContaminationCount(
                source=source,
                evaluation=file,
                examples=count,
                most=self.counts_with_most[source, file],
                rows=len(self.evaluation_rows[source, file]),
            )
            for (source, file), count in self.example_counts.items()
        ]

    def sentence(self, compared: int, evaluation: Mapping[str, Any]) -> str:
        """How many of the compared examples share text, and with how many evaluation rows.

        Args:
            compared: how many examples were compared.
            evaluation: what the plan says about the evaluation data.
        """
        all_rows = plural(evaluation["counts"]["rows"], "evaluation row")
        if not self.examples:
            return f"No example shares {evaluation['ngram']} words in a row with any of {all_rows}."
        # A row that several sources share text with counts once.
        shared_rows = {(file, line) for (_, file), lines in self.evaluation_rows.items() for line in lines}
        compared_examples = plural(compared, "example")
        shared = f"{self.examples:,} of {compared_examples} share text with {len(shared_rows):,} of {all_rows}"
        if not self.examples_with_most:
            return f"{shared}."
        return f"{shared}, {self.examples_with_most:,} of them most or all of a question or an answer."


class _LargestHits:
    """The hits with the largest shares. Where several examples of one row share the same text, only the first of them
    is among these.
    """

    def __init__(self) -> None:
        self.hits: list[Hit] = []
        """At most `_SHOWN_HITS`, the largest share first."""
        self._row = ""
        """The row of the example that was looked at last."""
        self._texts_of_row: set[tuple[str, int, str]] = set()
        """The texts that its examples share so far, as `_text_of` gives them."""

    def add(self, example_hits: Sequence[Hit]) -> None:
        """Look at the hits of one example. Examples of one row come together, as they do in the file."""
        row = _row_of(example_hits[0].id)
        if row != self._row:
            self._row = row
            self._texts_of_row = set()
        # Examples of one row, such as the solutions of a problem, share the same text with the evaluation data.
        new_texts = [hit for hit in example_hits if _text_of(hit) not in self._texts_of_row]
        self._texts_of_row.update(map(_text_of, new_texts))
        self.hits = nlargest(_SHOWN_HITS, [*self.hits, *new_texts], key=lambda hit: hit.share)


def contamination_of(
    hits: Iterable[Hit], evaluation: Mapping[str, Any], compared: int, action: str = ""
) -> Contamination:
    """The section, from all hits in the order of examples.

    Args:
        evaluation: what the plan says about the evaluation data: `counts` has its rows, `ngram` how many words in a row
            must be the same.
        compared: how many examples were compared.
        action: `report` or `drop`, as configured; "" if examples are only compared, and nothing is packed.
    """
    tally = _Tally()
    largest = _LargestHits()
    for _, group in groupby(hits, lambda hit: hit.id):
        example_hits = list(group)
        tally.add(example_hits)
        largest.add(example_hits)
    return Contamination(
        sentence=tally.sentence(compared, evaluation),
        action=action,
        examples=tally.examples,
        counts=tally.counts(),
        shown=largest.hits,
    )


def _text_of(hit: Hit) -> tuple[str, int, str]:
    """(evaluation file, line, shared words): what two hits that show the same text have in common."""
    return hit.evaluation, hit.evaluation_line, hit.shared


def _row_of(example: str) -> str:
    """The row of an example, by its id: `apps/train:3` for `apps/train:3/1`."""
    return re.sub(r"(:\d+)/\d+$", r"\1", example)


def noted_hits(out: Store) -> Iterator[Hit]:
    """The lines of contamination.jsonl; a damaged line is left out, and `packtrain verify` says so.

    Args:
        out: the store of the dataset.

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
    """Examples that share text with evaluation rows, by source and evaluation file, and some of the texts."""
    rows_of_counts = [
        [count.source, count.evaluation, f"{count.examples:,}", f"{count.most:,}", f"{count.rows:,}"]
        for count in contamination.counts[:_COUNTS]
    ]
    head_of_counts = ("source", "evaluation file", "examples", "most or all of it", "evaluation rows")
    counts = Grid("Examples that share text", head_of_counts, rows_of_counts, text_columns=2)
    # With their texts, because only a reader can tell a common phrase from a copied problem.
    rows_of_hits = [
        [hit.id, f"{hit.evaluation}, line {hit.evaluation_line:,}", share(hit.share), hit.kind, clipped(hit.shared)]
        for hit in contamination.shown
    ]
    head_of_hits = (
        "example",
        "evaluation row",
        "share of it",
        "which text",
        "the longest run of words that both share",
    )
    largest = Grid("Some of them, the largest share first", head_of_hits, rows_of_hits, text_columns=5)
    tables = [table for table in (counts, largest) if table.rows]
    sentence = contamination.sentence
    if contamination.examples and contamination.action == "drop":
        sentence += " They are left out."
    elif contamination.examples and contamination.action == "report":
        sentence += " They are kept, because `action` is `report`."
    return Section("contamination", QUESTION, sentence, tables)
