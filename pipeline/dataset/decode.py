"""Prints a packed row as text for `inspect`, document by document, with trained tokens in colour."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from ...schemas.errors import InputError
from ...schemas.escape import escape, escape_line
from ...schemas.layout import fill_of
from ...schemas.rows import IGNORE_INDEX, UNPADDED, WEIGHTS
from ...schemas.units import plural, share
from .documents import names_of
from .open_dataset import Finished
from .run_notes import tokenizer_folder

TRAINED = "bold green"
MASKED = "dim"
WEIGHT = "cyan"
_PAIR_PARTS = (
    ("prompt_ids", "prompt", "dim"),
    ("chosen_ids", "chosen", "bold green"),
    ("rejected_ids", "rejected", "red"),
)
"""(column, title, style) of each part of a pair."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One document piece of a packed row."""

    doc_id: int
    start: int
    ids: list[int]
    """With padding, unless the dataset says how much there is."""
    labels: list[int]
    padding: int = 0
    """Tokens of padding behind `ids`, if the dataset says so."""
    weights: list[float] | None = None
    """The loss weight of each label; None if all are 1."""

    @property
    def trained(self) -> int:
        """Number of trained tokens."""
        return sum(label != IGNORE_INDEX for label in self.labels)

    def stretches(self) -> Iterator[tuple[float, list[int]]]:
        """Yield (loss weight, ids) of each run of tokens; the weight is 0 for those that are not trained."""
        begin = 0
        weights = self.weights or [float(label != IGNORE_INDEX) for label in self.labels]
        for index in range(1, len(weights) + 1):
            if index == len(weights) or weights[index] != weights[begin]:
                yield weights[begin], self.ids[begin:index]
                begin = index


def pieces(dataset: Finished, row: int, split: str) -> list[Piece]:
    """Return the pieces of one packed row.

    Raises:
        InputError: the row or the split does not exist.
    """
    batch = dataset.row(row, split)
    columns = {name: batch.column(name)[0].as_py() for name in batch.schema.names}
    out, begin = [], 0
    lengths = columns["seq_lengths"]
    own = columns.get(UNPADDED, lengths)
    for doc_id, start, length, tokens in zip(columns["doc_ids"], columns["doc_starts"], lengths, own, strict=True):
        ids, labels = (columns[name][begin : begin + tokens] for name in ("input_ids", "labels"))
        weights = columns[WEIGHTS][begin : begin + tokens] if WEIGHTS in columns else None
        out.append(Piece(doc_id, start, ids, labels, length - tokens, weights))
        begin += length
    return out


def find_decoder(dataset: Finished) -> "Decoder":
    """Load the tokenizer that a run used.

    Raises:
        InputError: it is no longer where it was, or cannot be read.
    """
    folder = tokenizer_folder(dataset.store)
    if folder is None:
        raise InputError("the run's tokenizer is gone; packtrain inspect --tokenizer FOLDER shows rows")
    return load_decoder(folder)


def load_decoder(folder: Path) -> "Decoder":
    """Load a tokenizer that turns ids back into text.

    Raises:
        InputError: the folder has no tokenizer.json, or one that cannot be read.
    """
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    if not path.is_file():
        raise InputError(f"{folder} has no tokenizer.json; give the tokenizer's folder with --tokenizer")
    try:
        return Decoder(Tokenizer.from_file(str(path)))
    except Exception as error:  # tokenizers does not raise a more specific error
        raise InputError(f"{path} cannot be read ({error}); give the tokenizer's folder with --tokenizer") from error


class Decoder:
    """Turns tokens back into text."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def text(self, ids: list[int]) -> str:
        """Return the text of some tokens, including special ones."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def spans(self, runs: list[list[int]]) -> list[str]:
        """Return the texts of consecutive runs. A character whose bytes are split over two runs goes to the second."""
        out, done, ids = [], "", list[int]()
        for number, run in enumerate(runs):
            ids += run
            text = self.text(ids)
            if number < len(runs) - 1:
                text = text.rstrip("\ufffd")
            out.append(text[len(done) :])
            done = text
        return out


def show_row(console: Console, dataset: Finished, row: int, split: str, decoder: Decoder) -> None:
    """Print one packed row, or one preference pair."""
    if dataset.manifest.preference:
        _show_pair(console, dataset, row, split, decoder)
        return
    found = pieces(dataset, row, split)
    colour, weighted = has_colour(console), dataset.manifest.weighted
    names = names_of(dataset, {piece.doc_id for piece in found})
    capacity = dataset.manifest.max_length
    used, trained = sum(len(piece.ids) for piece in found), sum(piece.trained for piece in found)
    padding = sum(piece.padding for piece in found)
    padded = f" and {padding:,} of padding" if padding else ""
    weight = f", loss weights add up to {sum(sum(one.weights or ()) for one in found):.4g}" if weighted else ""
    console.print(
        Text(
            f"row {row} of {split}: {plural(len(found), 'document')}, {used:,} of {capacity:,} tokens "
            f"({share(fill_of(used, 1, capacity), fixed=True)}){padded}, {trained:,} trained{weight}"
        )
    )
    left, right = ("", "") if colour else ("⟦", "⟧")  # without colours, brackets show what is trained
    legend: list[str | tuple[str, str]] = [
        *("legend: ", (f"{left}trained{right}", TRAINED), " · ", ("not trained", MASKED)),
        *((" · ", ("×2 ", WEIGHT), "loss weight of what follows, if it is not 1") if weighted else ()),
    ]
    console.print(Text.assemble(*legend))
    for piece in found:
        title = [escape_line(names.get(piece.doc_id, (str(piece.doc_id), ""))[0]), plural(len(piece.ids), "token")]
        title[1] += f" and {piece.padding:,} of padding" if piece.padding else ""
        title[1] += f", from token {piece.start:,}" if piece.start else ""
        title.append(f"{piece.trained:,} trained")
        title += [f"weight {sum(piece.weights):.4g}"] if piece.weights is not None else []
        text, stretches = Text(), list(piece.stretches())
        texts = decoder.spans([run for _, run in stretches])
        for (weighs, _), said in zip(stretches, texts, strict=True):
            flag = weighs > 0
            style = TRAINED if flag else MASKED
            text.append(f"×{weighs:.4g} " if weighs not in (0, 1) else "", WEIGHT)
            text.append(left if flag else "", style)
            text.append(escape(said), style)
            text.append(right if flag else "", style)
        console.print(Panel(text, title=Text(" · ".join(title)), title_align="left"))


def _show_pair(console: Console, dataset: Finished, row: int, split: str, decoder: Decoder) -> None:
    """Print one pair: its prompt once, and both completions."""
    found = dataset.row(row, split).to_pylist()[0]
    name, _ = names_of(dataset, found["doc_ids"])[found["doc_ids"][0]]
    prompt, *completions = (len(found[column]) for column, _, _ in _PAIR_PARTS)
    console.print(
        Text(
            f"row {row} of {split}: {escape_line(name)}, a preference pair of {plural(prompt, 'prompt token')} and "
            f"{completions[0]:,} chosen or {completions[1]:,} rejected tokens (at most "
            f"{dataset.manifest.max_length:,} with either)"
        )
    )
    for column, title, style in _PAIR_PARTS:
        tokens = found[column]
        # Decoded together with the prompt, because some tokenizers drop a space before the first token.
        before = [] if column == "prompt_ids" else found["prompt_ids"]
        body = Text(escape(decoder.spans([before, tokens])[1]), style)
        console.print(Panel(body, title=Text(f"{title} · {plural(len(tokens), 'token')}"), title_align="left"))


def has_colour(console: Console) -> bool:
    """Whether the terminal has colours, and NO_COLOR is not set."""
    return console.color_system is not None and not console.no_color
