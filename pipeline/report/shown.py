"""A few packed rows as text, document by document. Long documents keep the text where training starts and ends."""

from ...schemas.errors import PacktrainError
from ...schemas.report import ShownDocument, ShownPiece, ShownRow
from ..dataset.decode import Decoder, Piece, find_decoder, pieces
from ..dataset.documents import names_of
from ..dataset.open_dataset import Finished

ROWS = 6
ROW_CHARACTERS = 4_000
"""About the most text of one row."""
LEAST_CHARACTERS = 160
"""Least text of a document that is shown with text."""
TEXTS = 40
"""Maximum number of documents of a row that are shown with text."""
LISTED = 100
"""Maximum number of documents of a row that are listed."""
_UNTRAINED = 400
"""About the most text of a stretch that is not trained: what is trained should be seen at a glance."""
_STRETCHES = 8
"""Maximum number of stretches of a document that are shown: half from its start, half from its end."""
_GAP = " … "


def shown_rows(dataset: Finished, split: str, decoder: Decoder | None = None) -> tuple[list[ShownRow], str | None]:
    """A few evenly chosen rows of a split, or pairs of preference data; and why there are none.

    Args:
        decoder: the run's tokenizer, if it is loaded.
    """
    try:
        decoder = decoder or find_decoder(dataset)
        count = dataset.manifest.splits[split].rows
        chosen = sorted({count * number // ROWS for number in range(ROWS)}) if count else []
        if dataset.manifest.preference:
            return [_pair(dataset, split, row, decoder) for row in chosen], None
        found = [pieces(dataset, row, split) for row in chosen]
        names = names_of(dataset, {piece.doc_id for row in found for piece in row[:LISTED]})
        capacity = dataset.manifest.max_length
        rows = [
            ShownRow(split, row, sum(len(one.ids) for one in mine), capacity, _documents(mine, names, decoder))
            for row, mine in zip(chosen, found, strict=True)
        ]
        return rows, None
    except PacktrainError as error:
        return [], str(error)


def _pair(dataset: Finished, split: str, number: int, decoder: Decoder) -> ShownRow:
    """A preference pair: the prompt, of which nothing is trained, and both completions, of which all is."""
    row = dataset.row(number, split).to_pylist()[0]
    doc_id = row["doc_ids"][0]
    id, _ = names_of(dataset, [doc_id]).get(doc_id, (str(doc_id), ""))
    texts, room = [], ROW_CHARACTERS // 3
    for part in ("prompt", "chosen", "rejected"):
        ids, trained = row[f"{part}_ids"], part != "prompt"
        text = short_text(decoder, ids, room)
        shortened = len(ids) > room or text != decoder.text(ids)
        shown = [ShownPiece(text, trained, len(ids))] if ids else []
        texts.append(ShownDocument(id, part, doc_id, 0, len(ids), len(ids) if trained else 0, shown, shortened))
    tokens = sum(one.tokens for one in texts)
    return ShownRow(split, number, tokens, tokens, texts)


def _documents(found: list[Piece], names: dict[int, tuple[str, str]], decoder: Decoder) -> list[ShownDocument]:
    """The documents of a row, with about `ROW_CHARACTERS` of text in total."""
    listed = found[:LISTED]
    each = max(ROW_CHARACTERS // max(min(len(listed), TEXTS), 1), LEAST_CHARACTERS)
    out = []
    for number, piece in enumerate(listed):
        id, source = names.get(piece.doc_id, (str(piece.doc_id), ""))
        texts, shortened = _texts(piece, decoder, each) if number < TEXTS else ([], True)
        out.append(
            ShownDocument(id, source, piece.doc_id, piece.start, len(piece.ids), piece.trained, texts, shortened)
        )
    return out


def _texts(piece: Piece, decoder: Decoder, room: int) -> tuple[list[ShownPiece], bool]:
    """A document's stretches as text, and whether text was left out."""
    spans = list(piece.stretches())
    if len(piece.ids) <= room:
        texts = decoder.spans([ids for *_, ids in spans])
        fits = all(weight > 0 or len(text) <= _UNTRAINED for (weight, _), text in zip(spans, texts, strict=True))
        if fits and sum(map(len, texts)) <= room:
            each_text = zip(spans, texts, strict=True)
            return [ShownPiece(text, weight > 0, len(ids)) for (weight, ids), text in each_text], False
    half = _STRETCHES // 2
    kept = spans if len(spans) <= _STRETCHES else [*spans[:half], *spans[-half:]]
    each = max(room // len(kept), 40)
    rooms = [each if weight > 0 else min(each, _UNTRAINED) for weight, _ in kept]
    texts = [short_text(decoder, ids, most) for (_, ids), most in zip(kept, rooms, strict=True)]
    out = [ShownPiece(text, weight > 0, len(ids)) for (weight, ids), text in zip(kept, texts, strict=True)]
    if len(kept) < len(spans):
        left = sum(len(ids) for *_, ids in spans[half:-half])
        out.insert(half, ShownPiece(_GAP, False, left))
    return out, True


def short_text(decoder: Decoder, ids: list[int], room: int) -> str:
    """The start and the end of a stretch's text, about `room` characters."""
    if len(ids) <= room and len(text := decoder.text(ids)) <= room:
        return text
    half = room // 2  # nearly all tokens have at least one character, so as many tokens are enough
    return decoder.text(ids[:half])[:half].rstrip("\ufffd") + _GAP + decoder.text(ids[-half:])[-half:].lstrip("\ufffd")
