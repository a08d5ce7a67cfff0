"""contamination.jsonl: every hit, an example and an evaluation row a line; some lines with both texts. And their
sums by source and evaluation file.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby

import msgspec

from ...schemas.escape import escape_json
from ...schemas.manifest import FileRecord
from ...schemas.report import OverlapCount
from ...schemas.units import plural
from ...stages.overlap.examples import ANSWER, NEARLY, PART, PROMPT, WHOLE
from ...stages.overlap.index import OverlapIndex
from ..inputs.blocks import Block, InputFile
from ..store.open import Store
from .driver import Contamination
from .index_file import EvaluationRows, load_rows
from .task import BlockHit, HitTexts

NAME = "contamination.jsonl"
EQUAL_ROWS = 10
"""Rows with the same text that a hit names; a set may have a question thousands of times."""
EACH, MOST = 6, 60
"""Hits with texts: of a source, evaluation file and kind of match, and of all."""


class HitLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the file."""

    id: str
    """The example's id, as in documents.parquet."""
    source: str
    evaluation: str
    """Name of the evaluation file."""
    evaluation_line: int
    """The row's line in it, from 1."""
    kind: str
    """`prompt` or `answer` of the evaluation row."""
    match: str
    """`whole`, `near-whole` or `n-gram`."""
    share: float
    """The share of the evaluation text's n-grams that the example has."""
    shared: str
    """The longest run of words that both share, without case and punctuation; at most 60 words."""
    evaluation_id: str = ""
    texts: HitTexts | None = None


def hit_lines(found: Contamination) -> Iterator[HitLine]:
    """Yield all lines, in the order of the run."""
    search, rows = load_rows(found.cache, found.evaluation.index)
    shown = Counter[object]()
    for file, block, hits in found.each():
        for _, some in groupby(hits.hits, lambda hit: (hit.line, hit.sub)):
            for hit, row in _rows_of(search.index, rows, some):
                line = _line(found, search.index, rows, file, block, hit, row)
                kind = (line.source, line.evaluation, line.match)
                if hit.texts is not None and shown[kind] < EACH and shown.total() < MOST:
                    shown[kind] += 1
                    line = msgspec.structs.replace(line, texts=hit.texts)
                yield line


def put_hits(found: Contamination, out: Store, name: str = NAME) -> FileRecord:
    """Write the file, and return its entry in the manifest."""
    with out.draft("") as draft:
        for line in hit_lines(found):
            draft.file.write(escape_json(msgspec.json.encode(line)) + b"\n")
        put = draft.result
        out.put(draft, name, replace_damaged=True)
    return FileRecord(name, put.bytes, put.hash)


def _rows_of(index: OverlapIndex, rows: EvaluationRows, some: Iterable[BlockHit]) -> Iterator[tuple[BlockHit, int]]:
    """Yield the hits of one example, one for each evaluation row and kind of text: that of the text it shares most
    of.
    """
    best: dict[tuple[int, int, bool], tuple[BlockHit, int]] = {}
    for hit in some:
        first, last = int(rows.row_starts[hit.text]), int(rows.row_starts[hit.text + 1])
        for row in range(first, min(last, first + EQUAL_ROWS)):
            key = (int(rows.row_files[row]), int(rows.row_lines[row]), bool(index.asks[hit.text]))
            if key not in best or hit.share > best[key][0].share:
                best[key] = hit, row
    yield from (best[key] for key in sorted(best))


def _line(
    found: Contamination,
    index: OverlapIndex,
    rows: EvaluationRows,
    file: InputFile,
    block: Block,
    hit: BlockHit,
    row: int,
) -> HitLine:
    number = f"/{hit.sub}" if hit.sub >= 0 else ""
    mine, of_file = file.at(block, hit.line)
    return HitLine(
        id=f"{file.source}/{mine.label}:{of_file}{number}",
        source=file.source,
        evaluation=found.evaluation.files[int(rows.row_files[row])].file,
        evaluation_line=int(rows.row_lines[row]),
        kind=PROMPT if index.asks[hit.text] else ANSWER,
        match=hit.match,
        share=round(hit.share, 4),
        shared=hit.longest,
        evaluation_id=rows.row_ids[row].as_py(),
    )


TELLS_NOTHING = "too short, or made of phrases that many rows have"
"""Why a text of an evaluation row is not compared."""
_STRENGTH = {PART: 0, NEARLY: 1, WHOLE: 2}


@dataclass(slots=True)
class OverlapSummary:
    """All hits."""

    examples: int = 0
    """Examples that share text with any evaluation row."""
    matches: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)
    """By source and evaluation file, the examples by their strongest match."""
    found: dict[tuple[str, str], set[int]] = field(default_factory=dict)
    """By source and evaluation file, the lines of the evaluation rows."""
    shown: list[HitLine] = field(default_factory=list)
    """The hits with texts, the strongest first."""

    @property
    def counts(self) -> list[OverlapCount]:
        """The numbers by source and evaluation file, for tables."""
        return [
            OverlapCount(*place, one.total(), one[WHOLE], one[NEARLY], one[PART], len(self.found[place]))
            for place, one in self.matches.items()
        ]

    @property
    def rows(self) -> int:
        """Evaluation rows of which something was found."""
        return len({(file, line) for (_, file), lines in self.found.items() for line in lines})

    def sentence(self, examples: int, rows: int) -> str:
        """How many of so many examples share text with how many of so many evaluation rows."""
        if not self.examples:
            return f"no example shares text with any of {plural(rows, 'evaluation row')}"
        return (
            f"{self.examples:,} of {plural(examples, 'example')} share text with {self.rows:,} of "
            f"{plural(rows, 'evaluation row')}"
        )


def summarise(lines: Iterable[HitLine]) -> OverlapSummary:
    """Add up lines, which stand in the order of examples."""
    out = OverlapSummary()
    for _, some in groupby(lines, lambda line: line.id):
        out.examples += 1
        strongest: dict[tuple[str, str], str] = {}
        for line in some:
            place = (line.source, line.evaluation)
            out.found.setdefault(place, set()).add(line.evaluation_line)
            strongest[place] = max(strongest.get(place, PART), line.match, key=_strength)
            if line.texts is not None:
                out.shown.append(line)
        for place, match in strongest.items():
            out.matches.setdefault(place, Counter())[match] += 1
    out.shown.sort(key=lambda line: (-_strength(line.match), -line.share))
    return out


def _strength(match: str) -> int:
    return _STRENGTH.get(match, 0)  # a file that others wrote may hold any word
