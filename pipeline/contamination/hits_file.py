"""contamination.jsonl: every hit, an example and an evaluation row a line; some lines with both texts."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from itertools import groupby

import msgspec

from ...schemas.escape import escape_json
from ...schemas.fingerprint import hash_bytes
from ...schemas.manifest import FileRecord
from ...stages.overlap.evaluation_row import ANSWER, PROMPT
from ...stages.overlap.pieces import Pieces
from ..inputs.blocks import Block, InputFile
from ..store.open import Store
from .driver import Contamination, share_of
from .index_file import EvaluationRows
from .task import BlockHit, BlockHits, ShownHit

NAME = "contamination.jsonl"
EQUAL_ROWS = 10
"""Rows with the same text that a hit names; a set may have a question thousands of times."""
EACH, MOST = 6, 60
"""Hits with texts: of a source, evaluation file and kind of match, and of all."""


class HitTexts(msgspec.Struct, frozen=True, omit_defaults=True):
    """Both texts of a hit, near what they share."""

    example: Pieces
    evaluation: Pieces
    example_cut: bool = False
    """Whether text was left out before or after."""
    evaluation_cut: bool = False


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
    rows, shown = found.rows, Counter[object]()
    for file, block, hits in found.each():
        texts = {one.hit: one for one in hits.shown}
        for _, some in groupby(enumerate(hits.hits), lambda one: (one[1].line, one[1].sub)):
            for line, at in _of_example(found, rows, file, block, hits, [at for at, _ in some]):
                kind = (line.source, line.evaluation, line.match)
                if at in texts and shown[kind] < EACH and shown.total() < MOST:
                    shown[kind] += 1
                    line = msgspec.structs.replace(line, texts=_texts(texts[at]))
                yield line


def put_hits(found: Contamination, out: Store, name: str = NAME) -> FileRecord:
    """Write the file, and return its entry in the manifest."""
    with out.draft("", sha256=True) as draft:
        for line in hit_lines(found):
            draft.file.write(escape_json(msgspec.json.encode(line)) + b"\n")
        put = draft.result
        if not put.bytes:  # an empty file has no bytes to hash
            put = type(put)(0, hash_bytes(b""), hashlib.sha256(b"").hexdigest())
        out.put(draft, name, replace_damaged=True)
    return FileRecord(name, put.bytes, put.hash, put.sha256)


def _of_example(
    found: Contamination, rows: EvaluationRows, file: InputFile, block: Block, hits: BlockHits, some: list[int]
) -> list[tuple[HitLine, int]]:
    """The lines of one example, one for each evaluation row and kind of text: that of the text it shares most of."""
    best: dict[tuple[int, int, str], tuple[float, int, int]] = {}
    for at in some:
        hit = hits.hits[at]
        kind, share = PROMPT if rows.asks[hit.text] else ANSWER, share_of(hit, rows)
        first, last = int(rows.row_starts[hit.text]), int(rows.row_starts[hit.text + 1])
        for row in range(first, min(last, first + EQUAL_ROWS)):
            key = (int(rows.row_files[row]), int(rows.row_lines[row]), kind)
            if key not in best or share > best[key][0]:
                best[key] = share, at, row
    return [
        (_line(found, rows, file, block, hits.hits[at], share, row, kind), at)
        for (_, _, kind), (share, at, row) in sorted(best.items())
    ]


def _line(
    found: Contamination,
    rows: EvaluationRows,
    file: InputFile,
    block: Block,
    hit: BlockHit,
    share: float,
    row: int,
    kind: str,
) -> HitLine:
    number = f"/{hit.sub}" if hit.sub >= 0 else ""
    mine, of_file = file.at(block, hit.line)
    return HitLine(
        id=f"{file.source}/{mine.label}:{of_file}{number}",
        source=file.source,
        evaluation=found.evaluation.files[int(rows.row_files[row])].file,
        evaluation_line=int(rows.row_lines[row]),
        kind=kind,
        match=hit.match,
        share=round(share, 4),
        shared=hit.longest,
        evaluation_id=rows.row_ids[row].as_py(),
    )


def _texts(shown: ShownHit) -> HitTexts:
    return HitTexts(shown.example, shown.evaluation, shown.example_cut, shown.evaluation_cut)
