"""The commands that show a finished dataset: inspect, loader; and what a configuration may hold."""

from pathlib import Path
from typing import Annotated

import typer

from ..schemas.errors import ConfigError
from . import completion
from .cli_options import Folder, Json, Split, print_json


def inspect(
    folder: Folder,
    row: Annotated[int | None, typer.Option(help="Which packed row, from 0.", show_default="0")] = None,
    split: Split = None,
    example: Annotated[
        str | None, typer.Option("--id", help="Follow one example through all stages, by its id.")
    ] = None,
    doc: Annotated[int | None, typer.Option(help="The same, by its doc id.")] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="The tokenizer's folder.", show_default="the one of the run")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="Of an example: the run's configuration, whose own readers may be run.", show_default=False),
    ] = None,
    ids: Annotated[bool, typer.Option("--ids", help="Of a row: show token by token, with ids.")] = False,
    width: Annotated[
        int | None, typer.Option(min=20, help="Of an example: columns.", show_default="the terminal's")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Of an example: shorten nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Show a packed row, or one example through all its stages: source, text, tokens, and its place in a row."""
    from .console import make_console, say
    from .inspect import load_decoder, show_row
    from .json_views import row_json
    from .outfolder import tokenizer_folder
    from .reader import open_dataset

    if example is not None or doc is not None:
        if (example is not None and doc is not None) or row is not None or split is not None or ids:
            raise ConfigError("give one of --row (with --split and --ids), --id and --doc")
        _inspect_example(folder, example, doc, tokenizer, config, width, full=full, as_json=as_json)
        return
    if full or width is not None or config is not None:
        raise ConfigError("--full, --width and --config are for one example; give --id or --doc as well")
    dataset = open_dataset(folder)
    place = tokenizer or tokenizer_folder(dataset.store)
    decoder = load_decoder(place) if place is not None else None
    if as_json:
        print_json(row_json(dataset, row or 0, split or "train", decoder))
        return
    console = make_console()
    if decoder is None:
        say(console, "the tokenizer of the run is not here; give its folder with --tokenizer. Ids instead of text:")
    show_row(console, dataset, row or 0, split or "train", decoder, ids)


def _inspect_example(
    folder: str,
    id: str | None,
    doc: int | None,
    tokenizer: Path | None,
    config: Path | None,
    width: int | None,
    *,
    full: bool,
    as_json: bool,
) -> None:
    from .console import make_console
    from .follow import Follower
    from .reader import open_dataset
    from .show import Teller
    from .story import story_json

    follower = Follower(open_dataset(folder), tokenizer, config)
    story = follower.by_id(id) if id is not None else follower.by_number(doc or 0)
    if as_json:
        print_json(story_json(story))
        return
    console = make_console()
    if width is not None:
        console.width = width
    Teller(console, full=full).tell(story)


def loader(
    folders: Annotated[
        list[str],
        typer.Argument(
            metavar="DIR", help="Finished datasets, or their URLs; all are mixed.", autocompletion=completion.path
        ),
    ],
    steps: Annotated[int, typer.Option(min=1, help="How many batches to take.")] = 5,
    rows_per_step: Annotated[int, typer.Option(min=1, help="Rows of a step, over all ranks.")] = 8,
    start: Annotated[int, typer.Option(help="The step to begin with.")] = 0,
    rank: Annotated[int | None, typer.Option(help="As which rank.", show_default="from the environment")] = None,
    world_size: Annotated[int | None, typer.Option(help="Of how many.", show_default="from the environment")] = None,
    order: Annotated[str, typer.Option(help="sequential, full or blocks.", autocompletion=completion.order)] = "full",
    seed: Annotated[int, typer.Option(help="Of the order.")] = 0,
    epochs: Annotated[int, typer.Option(help="How often everything is read.")] = 1,
    tail: Annotated[str, typer.Option(help="drop, pad or repeat.", autocompletion=completion.tail)] = "drop",
    split: Annotated[str, typer.Option(help="Which split.", autocompletion=completion.split)] = "train",
    balance: Annotated[bool, typer.Option(help="Group rows by cost where that gains something.")] = True,
    static_shapes: Annotated[bool, typer.Option("--static-shapes", help="Batches of one shape.")] = False,
    cache: Annotated[Path | None, typer.Option(help="Where remote shards are kept.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="List the documents of the first step.")] = False,
    as_json: Json = False,
) -> None:
    """Show what a trainer would get: batches, their fill and balance, and how fast they come."""
    from .console import make_console
    from .trainer_view import look, print_view

    view = look(
        folders,
        steps,
        start,
        explain,
        rows_per_step=rows_per_step,
        rank=0 if rank is None and world_size is not None else rank,
        world_size=world_size,
        order=order,
        seed=seed,
        epochs=epochs,
        tail=tail,
        balance="auto" if balance else None,
        static_shapes=static_shapes,
        cache=cache,
        **({"split": split} if len(folders) == 1 else {}),
    )
    if as_json:
        print_json(view.to_json())
    else:
        print_view(make_console(), view)


def schema() -> None:
    """Print the JSON Schema of the configuration, for editors."""
    from ..schemas.config import RunConfig

    print_json(RunConfig.model_json_schema())
