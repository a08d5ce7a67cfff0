"""The tokenizer that a run used, and its packed rows as document pieces whose tokens it turns back into text.

`_run/run.json` says which tokenizer and chat template a run used. It is not part of the dataset, holds paths, and may
come from another person: nothing that it names is run or written.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from ...schemas.errors import InputError, StoreError
from ...schemas.files.foreign import LISTING_BYTES, read_regular_text
from ...schemas.rows import IGNORE_INDEX
from ...schemas.tables.columns import PARENTS, SIDE_NAMES, SIDES, UNPADDED, WEIGHTS
from ..store.open_store import Store
from ..store.sealed_notes import get_note, put_note
from .open_dataset import Finished

RUN = "_run/run.json"
"""The note that says which tokenizer and chat template a run used."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One document piece of a packed row, without its padding."""

    doc_id: int
    start: int
    """First token within the document."""
    ids: list[int]
    weights: list[float]
    """The loss weight of each token; 0 for one that is not trained."""
    continues: int | None = None
    """The document whose first tokens it shares, if it shares some."""
    shared: int = 0
    """How many tokens of that document come before these; 0 if it shares none."""
    side: str = ""
    """`chosen` or `rejected` for a side of a preference pair; "" for other documents."""

    @property
    def trained(self) -> int:
        """Number of trained tokens."""
        return sum(weight > 0 for weight in self.weights)

    def stretches(self) -> Iterator[tuple[float, list[int]]]:
        """Yield (loss weight, ids) of each span of tokens that have the same weight."""
        for weight, span in groupby(zip(self.weights, self.ids, strict=True), key=lambda token: token[0]):
            yield weight, [id for _, id in span]


def pieces(dataset: Finished, row: int, split: str) -> list[Piece]:
    """Return the pieces of one packed row.

    Raises:
        InputError: the row or the split does not exist.
    """
    batch = dataset.row(row, split)
    columns = {name: batch.column(name)[0].as_py() for name in batch.schema.names}
    weights = columns.get(WEIGHTS) or [float(label != IGNORE_INDEX) for label in columns["labels"]]
    lengths = columns["seq_lengths"]
    unpadded = columns.get(UNPADDED, lengths)
    parents = columns.get(PARENTS) or [0] * len(lengths)
    sides = [SIDE_NAMES[side] for side in columns[SIDES]] if SIDES in columns else [""] * len(lengths)
    pieces_of_row: list[Piece] = []
    begin = 0
    columns_of_pieces = zip(columns["doc_ids"], columns["doc_starts"], lengths, unpadded, parents, strict=True)
    for number, (doc_id, start, length, tokens, parent) in enumerate(columns_of_pieces):
        # Padding comes after a piece's tokens, and belongs to its length.
        places = slice(begin, begin + tokens)
        continues = pieces_of_row[number - parent].doc_id if parent else None
        shared = columns["position_ids"][begin]  # above 0 only if the piece continues another one
        ids = columns["input_ids"][places]
        pieces_of_row.append(Piece(doc_id, start, ids, weights[places], continues, shared, sides[number]))
        begin += length
    return pieces_of_row


class Decoder:
    """Turns tokens back into text."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def text(self, ids: list[int]) -> str:
        """Return the text of some tokens, including special ones."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def spans(self, spans: list[list[int]]) -> list[str]:
        """Return the texts of consecutive spans. A character whose bytes are split over two spans goes to the second
        one.

        Args:
            spans: the token ids of each span.
        """
        texts = []
        ids: list[int] = []
        before = ""
        for number, span in enumerate(spans):
            # All tokens so far are decoded together, because what a token means may depend on those before it.
            ids += span
            text = self.text(ids)
            if number < len(spans) - 1:  # behind the last span, nothing completes the character
                text = text.rstrip("\ufffd")  # what a decoder writes for the first bytes of a character
            texts.append(text[len(before) :])
            before = text
        return texts


def load_decoder(folder: Path) -> Decoder:
    """Load the tokenizer of a folder.

    Raises:
        InputError: the folder has no tokenizer.json, or one that cannot be read.
    """
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    if not path.is_file():
        raise InputError(f"{folder} has no tokenizer.json; give the tokenizer's folder with --tokenizer")
    try:
        return Decoder(Tokenizer.from_str(read_regular_text(path, LISTING_BYTES)))
    except Exception as error:  # tokenizers does not raise a more specific error
        raise InputError(f"{path} cannot be read ({error}); give the tokenizer's folder with --tokenizer") from error


def find_decoder(dataset: Finished) -> Decoder:
    """Load the tokenizer that a run used.

    Raises:
        InputError: it is no longer where it was, or cannot be read.
    """
    try:
        folder = tokenizer_folder(dataset)
    except InputError as error:
        raise InputError(f"{error}; packtrain inspect --tokenizer FOLDER shows rows") from None
    return load_decoder(folder)


def tokenizer_folder(dataset: Finished) -> Path:
    """The folder of the tokenizer that a run used.

    Raises:
        InputError: it is no longer where it was.
    """
    note = None
    with suppress(StoreError):
        note = get_note(dataset.store, RUN, _Run)
    if note is None or not Path(note.tokenizer).is_dir():
        raise InputError("the run's tokenizer is gone")
    return Path(note.tokenizer)


class _Run(msgspec.Struct):
    """What the note of a run holds."""

    tokenizer: str
    """The tokenizer's folder."""
    chat_template: str | None
    """The text of the chat template; None if the tokenizer has none."""


def remember(out: Store, tokenizer: Path, chat_template: str | None) -> None:
    """Write the note of a run: the tokenizer's folder, and the chat template's text."""
    put_note(out, RUN, _Run(str(tokenizer.absolute()), chat_template))
