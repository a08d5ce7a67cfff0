"""contamination.jsonl: every hit, an example and an evaluation row a line; some lines with both texts."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby

import msgspec

from ...schemas.escape import escape_json
from ...schemas.manifest import FileRecord
from ...stages.overlap.evaluation_row import ANSWER, PROMPT
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
