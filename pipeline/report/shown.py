"""A few packed rows as text, document by document. Long documents keep the text where training starts and ends."""

from pathlib import Path

from ...schemas.errors import PacktrainError
from ...schemas.report.shown_rows import ShownDocument, ShownPiece, ShownRow
from ..dataset.decode import Decoder, Piece, find_decoder, load_decoder, pieces
from ..dataset.open_dataset import Finished, open_dataset

ROWS = 6
ROW_CHARACTERS = 4_000
"""About the most text of one row."""
LEAST_CHARACTERS = 160
"""Least text of a document that is shown with text."""
LISTED = 40
"""Maximum number of documents of a row that are shown."""
_UNTRAINED = 400
"""About the most text of a stretch that is not trained: what is trained should be seen at a glance."""
_STRETCHES = 8
"""Maximum number of stretches of a document that are shown: half from its start, half from its end."""
_GAP = " … "


def inspect(folder: str | Path, row: int = 0, split: str = "train", *, tokenizer: str | Path | None = None) -> ShownRow:
    """A packed row as text, document by document, with what is trained; or a preference pair that is not packed.

    >>> row = packtrain.inspect("packed", 3)
    >>> [document.source for document in row.documents][0] in ("chats", "pairs")
    True
    >>> 0 < row.trained <= row.tokens
    True

    Args:
        folder: a finished dataset, or its URL.
        row: which row of the split, from 0.
        tokenizer: the tokenizer's folder; by default the run's.

    Raises:
        InputError: there is no such dataset, split or row; or the tokenizer is gone.
        IntegrityError: a file is missing or damaged.
    """
    dataset = open_dataset(folder)
    decoder = load_decoder(Path(tokenizer)) if tokenizer is not None else find_decoder(dataset)
    return shown_row(dataset, split, row, decoder)


def shown_rows(dataset: Finished, split: str, decoder: Decoder | None = None) -> tuple[list[ShownRow], str | None]:
    """A few evenly chosen rows of a split, packed or not; and why there are none.

    Args:
        decoder: the run's tokenizer, if it is loaded.
    """
    try:
        decoder = decoder or find_decoder(dataset)
        count = dataset.manifest.splits[split].rows
        chosen = sorted({count * number // ROWS for number in range(ROWS)}) if count else []
        return [shown_row(dataset, split, row, decoder, ROW_CHARACTERS) for row in chosen], None
    except PacktrainError as error:
        return [], str(error)


def shown_row(dataset: Finished, split: str, number: int, decoder: Decoder, room: int | None = None) -> ShownRow:
    """A packed row, or a preference pair that is not packed, as text.

    Args:
        room: about how many characters of text; None for all of it, and for all documents.

    Raises:
        InputError: the row or the split does not exist.
        IntegrityError: a file is missing or damaged.
    """
    if dataset.manifest.preference:
        return _pair(dataset, split, number, decoder, room)
    pieces_of_row = pieces(dataset, number, split)
    listed = pieces_of_row if room is None else pieces_of_row[:LISTED]
    parents = {piece.continues for piece in listed if piece.continues is not None}
    origins = dataset.origins({piece.doc_id for piece in listed} | parents)
    room_of_piece = None if room is None else max(room // max(len(listed), 1), LEAST_CHARACTERS)
    documents = []
    for piece in listed:
        origin = origins.get(piece.doc_id)
        id = str(piece.doc_id) if origin is None else origin.id
        source = "" if origin is None else origin.source
        texts, shortened = _texts(piece, decoder, room_of_piece)
        parent = origins.get(piece.continues) if piece.continues is not None else None
        continues = "" if piece.continues is None else str(piece.continues) if parent is None else parent.id
        documents.append(
            ShownDocument(
                id,
                source,
                piece.start,
                len(piece.ids),
                piece.trained,
                texts,
                shortened,
                continues,
                piece.shared,
                piece.side,
            )
        )
    tokens = sum(len(piece.ids) for piece in pieces_of_row)
    return ShownRow(split, number, tokens, dataset.manifest.row_length, documents)


def _pair(dataset: Finished, split: str, number: int, decoder: Decoder, room: int | None) -> ShownRow:
    """A preference pair that is not packed: the prompt, which is not trained, and both completions, which are."""
    row = dataset.row(number, split).to_pylist()[0]
    doc_id = row["doc_ids"][0]
    origin = dataset.origins([doc_id]).get(doc_id)
    id = str(doc_id) if origin is None else origin.id
    source = "" if origin is None else origin.source
    texts = []
    for part in ("prompt", "chosen", "rejected"):
        ids = row[f"{part}_ids"]
        trained = part != "prompt"
        # Decoded together with the prompt, because some tokenizers drop a space before the first token.
        full_text = decoder.spans([row["prompt_ids"] if trained else [], ids])[1]
        text = full_text if room is None else _clipped(full_text, room // 3)
        shown = [ShownPiece(text, float(trained), len(ids))] if ids else []
        shortened = text != full_text
        labels = len(ids) if trained else 0
        texts.append(ShownDocument(id, source, 0, len(ids), labels, shown, shortened, side=part))
    tokens = sum(document.tokens for document in texts)
    return ShownRow(split, number, tokens, tokens, texts, pair=True)


def _texts(piece: Piece, decoder: Decoder, room: int | None) -> tuple[list[ShownPiece], bool]:
    """A document's stretches as text, and whether text was left out."""
    spans = list(piece.stretches())
    if room is None or len(piece.ids) <= room:
        texts = decoder.spans([ids for _, ids in spans])
        each_text = list(zip(spans, texts, strict=True))
        fits = all(weight > 0 or len(text) <= _UNTRAINED for (weight, _), text in each_text)
        if room is None or (fits and sum(map(len, texts)) <= room):
            return [ShownPiece(text, weight, len(ids)) for (weight, ids), text in each_text], False
    half = _STRETCHES // 2
    kept = spans if len(spans) <= _STRETCHES else [*spans[:half], *spans[-half:]]
    room_of_span = max(room // len(kept), 40)
    shown = []
    for weight, ids in kept:
        room_of_text = room_of_span if weight > 0 else min(room_of_span, _UNTRAINED)
        shown.append(ShownPiece(_short_text(decoder, ids, room_of_text), weight, len(ids)))
    if len(kept) < len(spans):
        tokens_between = sum(len(ids) for _, ids in spans[half:-half])
        shown.insert(half, ShownPiece(_GAP, 0, tokens_between))
    return shown, True


def _short_text(decoder: Decoder, ids: list[int], room: int) -> str:
    """The start and the end of a stretch's text, about `room` characters."""
    if len(ids) <= room:
        return _clipped(decoder.text(ids), room)
    half = room // 2  # nearly all tokens have at least one character, so as many tokens are enough
    return decoder.text(ids[:half])[:half].rstrip("\ufffd") + _GAP + decoder.text(ids[-half:])[-half:].lstrip("\ufffd")


def _clipped(text: str, room: int) -> str:
    """The start and the end of a text, about `room` characters."""
    return text if len(text) <= room else text[: room // 2] + _GAP + text[-(room // 2) :]
