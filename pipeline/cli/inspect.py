"""`packtrain inspect`: a packed row, or what became of one example."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...schemas.errors import ConfigError
from ...schemas.units import plural
from .options import Folder
from .output import print_line

if TYPE_CHECKING:
    from ..explain import Story

_PLACES = 20
"""At most so many rows of an example are listed."""


def inspect(
    folder: Folder,
    row: int | None = None,
    split: str | None = None,
    example: Annotated[str | None, typer.Option("--id")] = None,
    tokenizer: Path | None = None,
) -> None:
    """Show a packed row, or what became of one example: its places in rows, or why it has none.

    Args:
        row: which packed row, from 0.
        split: which split; by default train.
        example (ID): say what became of one example, by its id or its doc id.
        tokenizer: with --row: the tokenizer's folder; by default the run's.
    """
    from ..dataset.decode import find_decoder, load_decoder, show_row
    from ..dataset.open_dataset import open_dataset
    from .console import make_console

    if example is not None:
        if row is not None or split is not None or tokenizer is not None:
            raise ConfigError("give one of --row (with --split and --tokenizer) and --id")
        from ..explain import Follower

        for line in _told(Follower(open_dataset(folder)).of(example), folder):
            print_line(line)
        return
    dataset = open_dataset(folder)
    decoder = load_decoder(tokenizer) if tokenizer is not None else find_decoder(dataset)
    show_row(make_console(), dataset, row or 0, split or "train", decoder)


def _told(story: "Story", folder: str) -> Iterator[str]:
    """What became of an example."""
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
        yield f"and {len(story.standings) - _PLACES:,} more rows"
    for what, tokens in story.cut.items():
        yield f"cut: {plural(tokens, 'token')} by {what}"
