"""`packtrain inspect`: a packed row, or one example through all stages."""

from pathlib import Path
from typing import Annotated

import typer

from ...schemas.errors import ConfigError
from .options import Folder


def inspect(
    folder: Folder,
    row: int | None = None,
    split: str | None = None,
    example: Annotated[str | None, typer.Option("--id")] = None,
    tokenizer: Path | None = None,
    full: bool = False,
) -> None:
    """Show a packed row, or one example through all stages: source, text, tokens, and its place in a row.

    Args:
        row: which packed row, from 0.
        split: which split; by default train.
        example (ID): follow one example through all stages, by its id or its doc id.
        tokenizer: the tokenizer's folder; by default the run's.
        full: with --id: shorten nothing.
    """
    from ..dataset.decode import load_decoder, show_row
    from ..dataset.open_dataset import open_dataset
    from ..dataset.run_notes import tokenizer_folder
    from .console import make_console, put

    console = make_console()
    if example is not None:
        if row is not None or split is not None:
            raise ConfigError("give one of --row (with --split) and --id")
        from ..explain.explain import Follower
        from .story import tell

        follower = Follower(open_dataset(folder), tokenizer)
        tell(console, follower.by_number(int(example)) if example.isdecimal() else follower.by_id(example), full=full)
        return
    if full:
        raise ConfigError("--full works with one example; add --id")
    dataset = open_dataset(folder)
    place = tokenizer or tokenizer_folder(dataset.store)
    decoder = load_decoder(place) if place is not None else None
    if decoder is None:
        put(
            console, "the run's tokenizer was not found; give its folder with --tokenizer. Showing ids instead of text:"
        )
    show_row(console, dataset, row or 0, split or "train", decoder)
