"""A handful of preference pairs as text: prompt, chosen and rejected completion, long ones shortened."""

from ...schemas.errors import PacktrainError
from ...schemas.report import ShownPair, ShownPiece, ShownText
from ..inspect import Decoder
from ..reader import Finished
from .packed_documents import PackedDocuments
from .shown import ALL_CHARACTERS, LEAST_CHARACTERS, ROW_CHARACTERS, Shown, find_decoder, short_text

_PARTS = ("prompt", "chosen", "rejected")


def shown_pairs(dataset: Finished, split: str, wanted: int) -> Shown:
    """Some pairs of a split, evenly.

    Args:
        wanted: how many.
    """
    count = dataset.manifest.splits[split].rows
    if wanted < 1:
        return Shown(absent="No pair was asked for.")
    try:
        decoder, documents = find_decoder(dataset), PackedDocuments(dataset)
        chosen = sorted({count * number // wanted for number in range(wanted)} if count else ())
        rows = [dataset.row(row, split).to_pylist()[0] for row in chosen]
        names = documents.named({row["doc_ids"][0] for row in rows})
        room = max(min(ROW_CHARACTERS, ALL_CHARACTERS // max(len(rows), 1)) // len(_PARTS), LEAST_CHARACTERS)
        pairs = []
        for at, row in zip(chosen, rows, strict=True):
            doc_id = row["doc_ids"][0]
            id, source, _ = names.get(doc_id, (str(doc_id), "", 0))
            # Chosen and rejected are each trained on whole; a prompt is only read.
            texts = [_text(decoder, row[f"{name}_ids"], name != "prompt", room) for name in _PARTS]
            pairs.append(ShownPair(split, at, id, source, doc_id, *texts))
        return Shown(pairs=pairs)
    except PacktrainError as error:
        return Shown(absent=str(error))


def _text(decoder: Decoder, ids: list[int], trained: bool, room: int) -> ShownText:
    shown = short_text(decoder, ids, room)
    whole = len(ids) <= room and shown == decoder.text(ids)
    return ShownText(len(ids), [ShownPiece(shown, trained, len(ids))] if ids else [], not whole)
