"""A handful of packed rows as text: documents apart, long ones shortened around where training begins and ends."""

from dataclasses import dataclass, field

from ...schemas.errors import IntegrityError, PacktrainError
from ...schemas.report import ShownDocument, ShownPair, ShownPiece, ShownRow
from ..inspect import Decoder, Piece, load_decoder, pieces
from ..outfolder import tokenizer_folder
from ..reader import Finished
from ..recall import recall, recall_spec
from ..stores import open_store
from .packed_documents import PackedDocuments
from .rows_look import RowLook

ROW_CHARACTERS = 4_000
"""Of a row, about."""
ALL_CHARACTERS = 60_000
"""Of all rows together, however many are asked for."""
LEAST_CHARACTERS = 160
"""Of a document that is shown at all."""
TEXTS = 40
"""Documents of a row that are shown with text."""
LISTED = 200
"""Documents of a row that are shown at all."""
_STRETCHES = 8
"""Stretches of a document that are shown: the first and the last ones."""
_GAP = " … "
_WORD = 24
"""Characters of a word, at most."""


@dataclass(frozen=True, slots=True)
class Shown:
    """Rows as text, or why there are none."""

    rows: list[ShownRow] = field(default_factory=list)
    absent: str | None = None
    pairs: list[ShownPair] = field(default_factory=list)
    """Of preference data, in the place of rows."""


def shown_rows(dataset: Finished, split: str, look: RowLook, wanted: int, *, cut: bool) -> Shown:
    """Some rows of a split, evenly, and one with a cut document.

    Args:
        look: rows to choose from.
        wanted: how many.
        cut: whether any document was cut.
    """
    if wanted < 1:
        return Shown(absent="No row was asked for.")
    if not len(look.rows):
        return Shown(absent=f"No row of {dataset.store.url} could be looked at from here.")
    try:
        decoder = find_decoder(dataset)
        documents = PackedDocuments(dataset)
        chosen = _chosen(dataset, documents, split, look, wanted, cut=cut)
        room = max(min(ROW_CHARACTERS, ALL_CHARACTERS // len(chosen)), LEAST_CHARACTERS)
        found = [pieces(dataset, row, split) for row in chosen]
        names = documents.named({piece.doc_id for row in found for piece in row[:LISTED]})
        capacity = dataset.manifest.max_length
        rows = [
            ShownRow(split, row, sum(len(one.ids) for one in mine), capacity, _documents(mine, names, decoder, room))
            for row, mine in zip(chosen, found, strict=True)
        ]
        return Shown(rows)
    except PacktrainError as error:
        return Shown(absent=str(error))


def find_decoder(dataset: Finished) -> Decoder:
    """The tokenizer of the run: as the cache has it, or from the folder that the run read.

    Raises:
        InputError: the folder has none.
        IntegrityError: both are gone.
    """
    asked = recall(dataset.store)
    if asked is not None:
        spec = recall_spec(open_store(asked.cache), dataset.manifest.plan)
        if spec is not None:
            return Decoder.of_json(spec.tokenizer_json)
    folder = tokenizer_folder(dataset.store)
    if folder is None:
        raise IntegrityError(
            "The tokenizer of the run is not here any more; `packtrain inspect --tokenizer FOLDER` shows rows."
        )
    return load_decoder(folder)


def _chosen(
    dataset: Finished, documents: PackedDocuments, split: str, look: RowLook, wanted: int, *, cut: bool
) -> list[int]:
    count = len(look.rows)
    places = {count * number // wanted for number in range(wanted)}
    if cut:
        row = _with_cut(dataset, documents, split, look)
        if row is not None:
            places = {*sorted(places)[: max(wanted - 1, 0)], row}
    return [int(look.rows[place]) for place in sorted(places)]


def _with_cut(dataset: Finished, documents: PackedDocuments, split: str, look: RowLook) -> int | None:
    """The place in `look` of a row with a document that was cut."""
    found = look.continued.nonzero()[0]
    if len(found):
        return int(found[0])
    # A truncated document fills its row, unless another limit cut it.
    full = ((look.pieces == 1) & (look.longest == dataset.manifest.max_length)).nonzero()[0][:8]
    for place in full.tolist():
        piece = pieces(dataset, int(look.rows[place]), split)[0]
        named = documents.named([piece.doc_id])
        if piece.doc_id in named and named[piece.doc_id][2] > len(piece.ids):
            return int(place)
    return None


def _documents(
    found: list[Piece], names: dict[int, tuple[str, str, int]], decoder: Decoder, room: int
) -> list[ShownDocument]:
    """The documents of a row, so many characters of all together."""
    listed = found[:LISTED]
    each = max(room // max(min(len(listed), TEXTS), 1), LEAST_CHARACTERS)
    out = []
    for number, piece in enumerate(listed):
        id, source, _ = names.get(piece.doc_id, (str(piece.doc_id), "", 0))
        trained = sum(len(ids) for flag, ids in piece.spans() if flag)
        texts, shortened = _texts(piece, decoder, each) if number < TEXTS else ([], True)
        out.append(ShownDocument(id, source, piece.doc_id, piece.start, len(piece.ids), trained, texts, shortened))
    return out


def _texts(piece: Piece, decoder: Decoder, room: int) -> tuple[list[ShownPiece], bool]:
    """A document's stretches as text, and whether something was left out."""
    spans = list(piece.spans())
    if len(piece.ids) <= room:
        texts = decoder.spans([ids for _, ids in spans])
        if sum(map(len, texts)) <= room:
            return [ShownPiece(text, flag, len(ids)) for (flag, ids), text in zip(spans, texts, strict=True)], False
    half = _STRETCHES // 2
    kept = spans if len(spans) <= _STRETCHES else [*spans[:half], *spans[-half:]]
    each = max(room // len(kept), 40)
    out = [ShownPiece(short_text(decoder, ids, each), flag, len(ids)) for flag, ids in kept]
    if len(kept) < len(spans):
        left = sum(len(ids) for _, ids in spans[half:-half])
        out.insert(half, ShownPiece(_GAP, False, left))
    return out, True


def short_text(decoder: Decoder, ids: list[int], room: int) -> str:
    """The beginning and the end of a stretch's text."""
    if len(ids) <= room:
        text = decoder.text(ids)
        if len(text) <= room:
            return text
    half = room // 2
    # A token is a character or more, but for a few of bytes.
    head, tail = decoder.text(ids[:room]), decoder.text(ids[-room:])
    return _to_word_end(head[:half].rstrip("\ufffd")) + _GAP + _from_word(tail[-half:].lstrip("\ufffd"))


def _to_word_end(text: str) -> str:
    """Without the word that was cut at its end, unless it is a long one."""
    cut = max(text.rfind(" "), text.rfind("\n"))
    return text[:cut] if len(text) - cut <= _WORD else text


def _from_word(text: str) -> str:
    """Without the word that was cut at its beginning, unless it is a long one."""
    found = [at for at in (text.find(" "), text.find("\n")) if at >= 0]
    return text[min(found) + 1 :] if found and min(found) <= _WORD else text
