"""`packtrain inspect`: a packed row, or what became of one example."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...schemas.errors import ConfigError
from ...schemas.units import plural
from .options import Folder, Json
from .output import print_json, print_line

if TYPE_CHECKING:
    from ..dataset.decode import Decoder
    from ..dataset.open_dataset import Finished
    from ..explain import Story

_PLACES = 20
"""At most so many rows of an example are listed."""
_CHARACTERS = 4000
"""At most so many characters of a source row are printed."""


def inspect(
    folder: Folder,
    row: int | None = None,
    split: str | None = None,
    example: Annotated[str | None, typer.Option("--id")] = None,
    tokenizer: Path | None = None,
    ids: bool = False,
    as_json: Json = False,
) -> None:
    """Show a packed row, or what became of one example: its source row, and its places in rows or why it has none.

    Args:
        row: which packed row, from 0.
        split: which split; by default train.
        example (ID): say what became of one example, by its id or its doc id.
        tokenizer: with --row: the tokenizer's folder; by default the run's.
        ids: with --row: show token by token, with ids.
    """
    from ..dataset.decode import load_decoder, show_row
    from ..dataset.open_dataset import open_dataset
    from ..dataset.run_notes import tokenizer_folder
    from .console import make_console, put

    if example is not None:
        if row is not None or split is not None or ids or tokenizer is not None:
            raise ConfigError("give one of --row (with --split, --ids and --tokenizer) and --id")
        from ..explain import Follower

        story = Follower(open_dataset(folder)).of(example)
        if as_json:
            print_json(story)
        else:
            for line in _told(story, folder):
                print_line(line)
        return
    dataset = open_dataset(folder)
    place = tokenizer or tokenizer_folder(dataset.store)
    decoder = load_decoder(place) if place is not None else None
    if as_json:
        print_json(_row_json(dataset, row or 0, split or "train", decoder))
        return
    console = make_console()
    if decoder is None:
        put(
            console, "the run's tokenizer was not found; give its folder with --tokenizer. Showing ids instead of text:"
        )
    show_row(console, dataset, row or 0, split or "train", decoder, ids)


def _told(story: "Story", folder: str) -> Iterator[str]:
    """What became of an example, and its source row."""
    yield story.id + (f" (document {story.doc_id:,})" if story.doc_id is not None else "")
    copies = f" in {story.copies:,} copies" if story.copies > 1 else ""
    size = f"{plural(story.tokens, 'token')}{copies}" if story.tokens else ""
    yield ": ".join(word for word in (story.state, size, story.reason, story.detail) if word)
    if story.twin:
        yield f"the earlier one is {story.twin}"
    for one in story.standings[:_PLACES]:
        yield f"row {one.row:,} of {one.split}: from token {one.start:,} of the example on, {one.trained:,} trained"
        yield f"  packtrain inspect {shlex.quote(folder)} --row {one.row} --split {one.split}"
    if len(story.standings) > _PLACES:
        yield f"and {len(story.standings) - _PLACES:,} more rows (--json lists all)"
    for what, tokens in story.cut.items():
        yield f"cut: {plural(tokens, 'token')} by {what}"
    yield from (f"note: {note}" for note in story.notes)
    yield story.origin.said
    if story.origin.value is not None:
        text = json.dumps(story.origin.value, ensure_ascii=False, indent=2, default=str)
        more = len(text) - _CHARACTERS
        yield text if more <= 0 else f"{text[:_CHARACTERS]} … {more:,} characters more (--json prints all)"


def _row_json(dataset: "Finished", row: int, split: str, decoder: "Decoder | None") -> dict[str, Any]:
    """A packed row, or a preference pair. Without a tokenizer, texts are None.

    Raises:
        InputError: the row or the split does not exist.
    """
    from ...schemas.layout import fill_of
    from ..dataset.decode import names_of, pieces

    if dataset.manifest.preference:
        found = dataset.row(row, split).to_pylist()[0]
        doc_id = found["doc_ids"][0]
        parts = {name: found[f"{name}_ids"] for name in ("prompt", "chosen", "rejected")}
        texts = {name: decoder.text(ids) if decoder is not None else None for name, ids in parts.items()}
        shown = {name: {"text": texts[name], "ids": ids} for name, ids in parts.items()}
        return {"split": split, "row": row, "id": names_of(dataset, [doc_id])[doc_id], "doc_id": doc_id, **shown}
    documents, length = pieces(dataset, row, split), dataset.manifest.max_length
    names = names_of(dataset, [piece.doc_id for piece in documents])
    tokens = sum(len(piece.ids) for piece in documents)
    out: dict[str, Any] = {"split": split, "row": row, "max_length": length, "tokens": tokens}
    out |= {"fill": fill_of(tokens, 1, length), "documents": []}
    for piece in documents:
        runs = [(weight, run) for weight, _, run in piece.stretches()]
        each = decoder.spans([run for _, run in runs]) if decoder is not None else [None] * len(runs)
        out["documents"].append({
            "id": names.get(piece.doc_id),
            "doc_id": piece.doc_id,
            "start": piece.start,
            "tokens": len(piece.ids),
            "padding": piece.padding,
            "trained": piece.trained,
            "weight": sum(weight * len(run) for weight, run in runs),
            "spans": [
                {"trained": weight > 0, "weight": weight, "text": text, "ids": run}
                for (weight, run), text in zip(runs, each, strict=True)
            ],
        })  # fmt: skip
    return out
