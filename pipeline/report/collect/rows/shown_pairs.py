"""A few preference pairs as text: prompt, chosen and rejected completion, shortened if long."""

from .....schemas.errors import PacktrainError
from .....schemas.report import ShownPair, ShownPiece, ShownText
from ....dataset.decode import Decoder
from ....dataset.open import Finished
from ....dataset.packed_documents import PackedDocuments
from .shown import ALL_CHARACTERS, LEAST_CHARACTERS, ROW_CHARACTERS, Shown, find_decoder, short_text

_PARTS = ("prompt", "chosen", "rejected")


def shown_pairs(dataset: Finished, split: str, wanted: int, decoder: Decoder | None = None) -> Shown:
    """`wanted` evenly chosen pairs of a split; `decoder` is the run's tokenizer, if it is loaded."""
    count = dataset.manifest.splits[split].rows
    if wanted < 1:
        return Shown(absent="No pairs were requested.")
    try:
        decoder, documents = decoder or find_decoder(dataset), PackedDocuments(dataset)
        chosen = sorted({count * number // wanted for number in range(wanted)} if count else ())
        rows = [dataset.row(row, split).to_pylist()[0] for row in chosen]
        names = documents.named({row["doc_ids"][0] for row in rows})
        room = max(min(ROW_CHARACTERS, ALL_CHARACTERS // max(len(rows), 1)) // len(_PARTS), LEAST_CHARACTERS)
        pairs = []
        for at, row in zip(chosen, rows, strict=True):
            doc_id = row["doc_ids"][0]
            id, source, _ = names.get(doc_id, (str(doc_id), "", 0))
            # The whole of chosen and rejected is trained; nothing of the prompt.
            texts = [_text(decoder, row[f"{name}_ids"], name != "prompt", room) for name in _PARTS]
            pairs.append(ShownPair(split, at, id, source, doc_id, *texts))
        return Shown(pairs=pairs)
    except PacktrainError as error:
        return Shown(absent=str(error))


def _text(decoder: Decoder, ids: list[int], trained: bool, room: int) -> ShownText:
    shown = short_text(decoder, ids, room)
    whole = len(ids) <= room and shown == decoder.text(ids)
    return ShownText(len(ids), [ShownPiece(shown, trained, len(ids))] if ids else [], not whole)
