"""Every token of every piece stands at its place, with its label and its position, whatever the pieces."""

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from packtrain.schemas.alignment import Alignment, Parallel
from packtrain.schemas.rows import IGNORE_INDEX, packed_schema
from packtrain.stages.pack.layout import LaidOut, PlannedPieces, lay_out

X = IGNORE_INDEX


@dataclass(frozen=True)
class Document:
    """Ids, and one flag a token: whether the mask selects it."""

    ids: list[int]
    asked: list[bool]

    def runs(self) -> list[tuple[int, bool]]:
        """(end, asked), one for every stretch of equal flags; at least one."""
        ends = [i for i in range(1, len(self.ids)) if self.asked[i] != self.asked[i - 1]]
        return [(end, self.asked[end - 1]) for end in [*ends, len(self.ids)]]


@dataclass(frozen=True)
class Piece:
    """Tokens `start` to `start + length` of a document; another piece has the first `repeated` of them, too."""

    document: int
    start: int
    length: int
    repeated: int = 0


def pieces_of(documents: list[Document], rows: list[list[Piece]]) -> PlannedPieces:
    flat = [piece for row in rows for piece in row]
    runs = [documents[piece.document].runs() for piece in flat]
    return PlannedPieces(
        tokens=[np.array(documents[p.document].ids, np.int32)[p.start : p.start + p.length] for p in flat],
        starts=np.array([piece.start for piece in flat], np.int32),
        lengths=np.array([piece.length for piece in flat], np.int32),
        repeated=np.array([piece.repeated for piece in flat], np.int32),
        doc_ids=np.array([piece.document for piece in flat], np.int64),
        row_offsets=np.cumsum([0, *map(len, rows)]).astype(np.int64),
        run_ends=np.array([end for each in runs for end, _ in each], np.int32),
        run_supervised=np.array([asked for each in runs for _, asked in each], np.bool_),
        run_offsets=np.cumsum([0, *map(len, runs)]).astype(np.int64),
    )


@st.composite
def layouts(draw: st.DrawFn) -> tuple[list[Document], list[list[Piece]]]:
    """Documents, and rows of any of their pieces: whole, cut, repeated, out of order."""
    documents = []
    for number in range(draw(st.integers(1, 6))):
        length = draw(st.integers(1, 12))
        ids = [1000 * (number + 1) + token for token in range(length)]
        documents.append(Document(ids, draw(st.lists(st.booleans(), min_size=length, max_size=length))))

    def piece() -> Piece:
        number = draw(st.integers(0, len(documents) - 1))
        length = len(documents[number].ids)
        start = draw(st.integers(0, length - 1))
        size = draw(st.integers(1, length - start))
        return Piece(number, start, size, draw(st.integers(0, size)))

    rows = [[piece() for _ in range(draw(st.integers(1, 4)))] for _ in range(draw(st.integers(1, 5)))]
    return documents, rows


parallels = st.builds(Parallel, st.integers(1, 4), st.integers(1, 3), st.sampled_from(["thd", "ring", "ulysses"]))


@given(layouts(), st.builds(Alignment.of, st.integers(1, 5), st.none() | parallels))
def test_every_token_at_its_place(case: tuple[list[Document], list[list[Piece]]], alignment: Alignment) -> None:
    documents, rows = case
    pad, align = 7, alignment.document
    laid: LaidOut = lay_out(pieces_of(documents, rows), alignment, pad)
    assert laid.batch.num_rows == len(rows)
    assert laid.batch.schema == packed_schema(unpadded=alignment.unpadded)
    number = 0
    for made, row in zip(laid.batch.to_pylist(), rows, strict=True):
        assert made["doc_ids"] == [piece.document for piece in row]
        assert made["doc_starts"] == [piece.start for piece in row]
        if alignment.unpadded:
            assert made["seq_lengths_unpadded"] == [piece.length for piece in row]
        assert len(made["input_ids"]) % alignment.row == 0
        at = 0
        for piece, size in zip(row, made["seq_lengths"], strict=True):
            document, part = documents[piece.document], slice(piece.start, piece.start + piece.length)
            padding = size - piece.length
            last = at + size == len(made["input_ids"])
            assert 0 <= padding < (alignment.row if last else align)
            assert size % align == 0
            here = slice(at, at + size)
            assert made["input_ids"][here] == document.ids[part] + [pad] * padding
            assert made["position_ids"][here] == list(range(size))
            asked = [flag and place >= piece.repeated for place, flag in enumerate(document.asked[part])]
            labels = [one if flag else X for one, flag in zip(document.ids[part], asked, strict=True)]
            assert made["labels"][here] == [X, *labels[1:]] + [X] * padding
            assert laid.trained[number] == sum(asked[1:])
            assert laid.heads[number] == asked[0]
            at += size
            number += 1
        assert at == len(made["input_ids"]) == len(made["labels"]) == len(made["position_ids"])
    assert number == len(laid.trained) == len(laid.heads)


@given(layouts())
def test_runs_may_be_cut_anywhere(case: tuple[list[Document], list[list[Piece]]]) -> None:
    """A run in two halves, or an empty one, changes nothing: what counts is the flag of each token."""
    documents, rows = case
    pieces = pieces_of(documents, rows)
    ends, asked, offsets = [], [], [0]
    for index in range(len(pieces.lengths)):
        begin = 0
        for run in range(int(pieces.run_offsets[index]), int(pieces.run_offsets[index + 1])):
            end, flag = int(pieces.run_ends[run]), bool(pieces.run_supervised[run])
            middle = (begin + end) // 2
            ends += [begin, middle, end]
            asked += [not flag, flag, flag]
            begin = end
        offsets.append(len(ends))
    finer = PlannedPieces(
        pieces.tokens,
        pieces.starts,
        pieces.lengths,
        pieces.repeated,
        pieces.doc_ids,
        pieces.row_offsets,
        np.array(ends, np.int32),
        np.array(asked, np.bool_),
        np.array(offsets, np.int64),
    )
    assert lay_out(finer).batch.equals(lay_out(pieces).batch)
