"""Labels that Megatron-Bridge does not train, although the mask says so.

Its collator takes the loss away wherever the *input* is the end-of-sequence token, with which it pads. In a chat, with
`mask: all`:

    input   Hello  <eos>  \\n      <user>
    label   <eos>  \\n     <user>  ...
    loss    1      0      1       ...

The label that is the token itself is trained. The one right behind it is not: usually the line break of a template, or
a special token. If it is a word, what the model should say there would be lost, and the dataset is refused.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

from ...schemas.arrays import view
from ...schemas.errors import InputError
from ...schemas.files.foreign import LISTING_BYTES, SETTINGS_BYTES, read_regular, read_regular_text
from ...schemas.rows import IGNORE_INDEX
from .foreign_formats import MisfitError


class UntrainedLabels:
    """Counts the labels behind end-of-sequence tokens in the shards of a dataset.

    Args:
        tokenizer: the folder of the tokenizer that the rows were made with.

    Raises:
        InputError: it has no end-of-sequence token, or cannot be read.
    """

    def __init__(self, tokenizer: Path) -> None:
        try:
            self._tokenizer = Tokenizer.from_str(read_regular_text(tokenizer / "tokenizer.json", LISTING_BYTES))
            settings = msgspec.json.decode(read_regular(tokenizer / "tokenizer_config.json", SETTINGS_BYTES))
        except Exception as error:  # tokenizers does not raise a more specific error
            raise InputError(f"{tokenizer} cannot be read: {error}") from error
        eos_token = settings.get("eos_token") if isinstance(settings, dict) else None
        if isinstance(eos_token, dict):  # as transformers wrote it earlier
            eos_token = eos_token.get("content")
        eos_id = self._tokenizer.token_to_id(eos_token) if isinstance(eos_token, str) else None
        if eos_id is None:
            raise InputError(f"{tokenizer} has no end-of-sequence token")
        self._eos_id: int = eos_id
        self._words: dict[int, str] = {}
        """What each token says, without white space; empty for special tokens."""
        self.count = 0
        """Labels right behind an end-of-sequence token so far; all of them are white space or special tokens."""

    def check(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches of a shard, each after it was looked at.

        Raises:
            MisfitError: a word would not be trained.
        """
        rows_before = 0
        for batch in batches:
            # The tokens of all rows of the batch, end to end.
            ids = view(batch.column("input_ids").flatten())
            labels = view(batch.column("labels").flatten())
            # Of the tokens a <eos> b c, the input <eos> at place 1 predicts b: the label at place 2 is not trained.
            # The first label of each row is masked, so no label is behind a token of another row.
            is_untrained = (ids[:-1] == self._eos_id) & (labels[1:] != IGNORE_INDEX)
            places = np.flatnonzero(is_untrained) + 1
            for place in places.tolist():
                word = self._word(int(ids[place]))
                if word:
                    # Of rows of 5 and 4 tokens, which begin at 0 and 5, place 7 is token 2 of row 1. A batch may be a
                    # slice of a longer one, whose offsets do not begin at 0.
                    offsets = view(batch.column("input_ids").offsets)
                    begins = offsets - offsets[0]
                    row = int(np.searchsorted(begins, place, "right")) - 1
                    raise MisfitError(rows_before + row, _describe(word, place - int(begins[row])))
            self.count += len(places)
            yield batch
            rows_before += batch.num_rows

    def _word(self, token_id: int) -> str:
        """What a token says, without white space; "" for a special token."""
        if token_id not in self._words:
            text: Any = self._tokenizer.decode([token_id], skip_special_tokens=True)
            self._words[token_id] = str(text).strip()
        return self._words[token_id]


def _describe(word: str, token: int) -> str:
    """Why a row cannot be exported.

    Args:
        word: what would not be trained.
        token: its place in the row, in tokens from 0.
    """
    return (
        f"{word[:40]!r} (token {token:,}) is right behind an end-of-sequence token. Megatron-Bridge would not train "
        "it, because its collator takes the loss away wherever the input is that token. Take another format, or a chat "
        "template that writes no words right behind that token"
    )
