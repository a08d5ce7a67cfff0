"""A few packed rows as text, document by document. Long documents keep the text where training starts and ends."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ...schemas.dataset.document_table import DocumentOrigin
from ...schemas.errors import PacktrainError
from ...schemas.report.shown_rows import ShownDocument, ShownPiece, ShownRow
from ..dataset.decode import Decoder, Piece, find_decoder, load_decoder, pieces
from ..dataset.open_dataset import Finished, open_dataset

ROWS = 6
"""Rows that a report shows."""
ROW_CHARACTERS = 4_000
"""About the most text of one row."""
LEAST_CHARACTERS = 160
"""Least number of characters of a document, however many share `ROW_CHARACTERS`."""
LISTED = 40
"""Maximum number of documents of a row that are shown."""
_UNTRAINED = 400
"""About the most text of a stretch that is not trained: what is trained should be seen at a glance."""
_STRETCHES = 8
"""Maximum number of stretches of a document that are shown: half from its start, half from its end."""
_LEAST_STRETCH = 40
"""Least number of characters of a stretch that is shown."""
_GAP = " … "
"""Stands where text was left out."""
_Stretch = tuple[float, list[int]]
"""Neighbouring tokens of a document with one loss weight, 0 if they are not trained: the weight, and their ids."""


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
    """A few evenly chosen rows of a split, and None; or no rows, and why they cannot be shown.

    Args:
        decoder: the run's tokenizer; None: it is loaded here.
    """
    try:
        decoder = decoder or find_decoder(dataset)
        count = dataset.manifest.splits[split].rows
        # Of 60 rows: 0, 10, 20, …, 50; of three rows, all.
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
    if dataset.manifest.has_unpacked_pairs:
        return _pair(dataset, split, number, decoder, room)
    pieces_of_row = pieces(dataset, number, split)
    listed = pieces_of_row
    room_of_piece = None
    if room is not None:
        listed = pieces_of_row[:LISTED]
        room_of_piece = max(room // max(len(listed), 1), LEAST_CHARACTERS)
    # The documents that listed ones continue are looked up together with these: each look-up reads the document table.
    parents = {piece.continues for piece in listed if piece.continues is not None}
    origins = dataset.origins({piece.doc_id for piece in listed} | parents)
    documents = []
    for piece in listed:
        id, source = _name(piece.doc_id, origins)
        texts, shortened = _texts(piece, decoder, room_of_piece)
        continues = ""
        if piece.continues is not None:
            continues, _ = _name(piece.continues, origins)
        document = ShownDocument(
            id=id,
            source=source,
            start=piece.start,
            tokens=len(piece.ids),
            trained=piece.trained,
            pieces=texts,
            shortened=shortened,
            continues=continues,
            shared=piece.shared,
            side=piece.side,
        )
        documents.append(document)
    tokens = sum(len(piece.ids) for piece in pieces_of_row)
    return ShownRow(split=split, row=number, tokens=tokens, capacity=dataset.manifest.row_length, documents=documents)


def _name(doc_id: int, origins: Mapping[int, DocumentOrigin]) -> tuple[str, str]:
    """(id, source) of a document; (its number, "") if documents.parquet does not list it."""
    origin = origins.get(doc_id)
    return (origin.id, origin.source) if origin is not None else (str(doc_id), "")


def _pair(dataset: Finished, split: str, number: int, decoder: Decoder, room: int | None) -> ShownRow:
    """A preference pair that is not packed: the prompt, which is not trained, and both completions, which are."""
    row = dataset.row(number, split).to_pylist()[0]
    doc_id = row["doc_ids"][0]
    id, source = _name(doc_id, dataset.origins([doc_id]))
    documents = []
    for part in ("prompt", "chosen", "rejected"):
        ids = row[f"{part}_ids"]
        is_trained = part != "prompt"
        # Decoded together with the prompt, because some tokenizers drop a space before the first token.
        before = row["prompt_ids"] if is_trained else []
        # Of these texts, the first is that of `before`.
        _, full_text = decoder.spans([before, ids])
        text = full_text
        if room is not None:
            text = _clipped(full_text, room // 3)  # there are three parts
        document = ShownDocument(
            id=id,
            source=source,
            start=0,
            tokens=len(ids),
            trained=len(ids) if is_trained else 0,
            pieces=[ShownPiece(text, weight=float(is_trained), tokens=len(ids))] if ids else [],
            shortened=text != full_text,
            side=part,
        )
        documents.append(document)
    tokens = sum(document.tokens for document in documents)
    return ShownRow(split=split, row=number, tokens=tokens, capacity=tokens, documents=documents, pair=True)


def _texts(piece: Piece, decoder: Decoder, room: int | None) -> tuple[list[ShownPiece], bool]:
    """A document's stretches as text, each with one loss weight; and whether text was left out.

    Args:
        room: about how many characters; None for all.
    """
    stretches = list(piece.stretches())
    if room is None:
        return _whole_texts(stretches, decoder), False
    # Nearly all tokens have at least one character, so text of more tokens than `room` is not decoded as a whole: a
    # document may have 128 Ki tokens.
    if len(piece.ids) <= room:
        whole = _whole_texts(stretches, decoder)
        fits = sum(len(shown.text) for shown in whole) <= room
        # A long stretch without training would push what is trained out of sight.
        hides_training = any(len(shown.text) > _UNTRAINED for shown in whole if not shown.weight)
        if fits and not hides_training:
            return whole, False
    return _short_texts(stretches, decoder, room), True


def _whole_texts(stretches: Sequence[_Stretch], decoder: Decoder) -> list[ShownPiece]:
    """All stretches of a document with all of their text."""
    # Decoded together, because the bytes of one character may stand in two stretches.
    texts = decoder.spans([ids for _, ids in stretches])
    return [ShownPiece(text, weight, len(ids)) for (weight, ids), text in zip(stretches, texts, strict=True)]


def _short_texts(stretches: Sequence[_Stretch], decoder: Decoder, room: int) -> list[ShownPiece]:
    """The first and the last stretches of a document, each with the start and the end of its text, about `room`
    characters in all.
    """
    half = _STRETCHES // 2
    kept = stretches if len(stretches) <= _STRETCHES else [*stretches[:half], *stretches[-half:]]
    room_of_trained = max(room // len(kept), _LEAST_STRETCH)
    room_of_untrained = min(room_of_trained, _UNTRAINED)
    shown = []
    for weight, ids in kept:
        text = _short_text(decoder, ids, room_of_trained if weight else room_of_untrained)
        shown.append(ShownPiece(text, weight, len(ids)))
    if len(kept) < len(stretches):
        # In their place a gap as long as they are, because the row is also drawn to scale.
        tokens_between = sum(len(ids) for _, ids in stretches[half:-half])
        shown.insert(half, ShownPiece(_GAP, weight=0, tokens=tokens_between))
    return shown


def _short_text(decoder: Decoder, ids: list[int], room: int) -> str:
    """The start and the end of a stretch's text, about `room` characters."""
    if len(ids) <= room:
        return _clipped(decoder.text(ids), room)
    # As many tokens as characters are enough, because nearly every token has at least one. Where they are cut off, a
    # character may have lost some of its bytes, which decode as U+FFFD.
    half = room // 2
    start = decoder.text(ids[:half])[:half].rstrip("\ufffd")
    end = decoder.text(ids[-half:])[-half:].lstrip("\ufffd")
    return start + _GAP + end


def _clipped(text: str, room: int) -> str:
    """The start and the end of a text, about `room` characters."""
    half = room // 2
    return text if len(text) <= room else text[:half] + _GAP + text[-half:]
