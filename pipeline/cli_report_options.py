"""Options of the commands that make a report."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.errors import ConfigError
from . import completion

if TYPE_CHECKING:
    from .report.options import ReportOptions

Lengths = Annotated[
    str | None,
    typer.Option(
        metavar="N,N,…", help="Lengths to compare; the configured one is added.", show_default="256 to 131072"
    ),
]
MaxLengthLimit = Annotated[
    int | None,
    typer.Option(
        min=2,
        metavar="N",
        help="The longest max_length that your memory affords: no longer one is advised.",
        show_default="none",
    ),
]
Batch = Annotated[
    int, typer.Option(min=1, help="Documents of a padded batch, and of an optimizer step without packing.")
]
Model = Annotated[
    Path | None,
    typer.Option(
        help="A model's folder or config.json, whose work is estimated.",
        show_default="6.7 billion parameters",
        autocompletion=completion.path,
    ),
]
Parameters = Annotated[float | None, typer.Option(min=1, help="Of the model, in place of --model; such as 1.2e9.")]
Layers = Annotated[int | None, typer.Option(min=1, help="Of the model, with --parameters.")]
Hidden = Annotated[int | None, typer.Option(min=1, help="Hidden size of the model, with --parameters.")]
WorldSize = Annotated[int, typer.Option(min=1, help="Ranks whose balance is told.")]
All = Annotated[
    bool, typer.Option("--all", help="Sweep over all documents, however many.", show_default="at most 2 million")
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE.html",
        help="The page to write, in folders that are made; numbers go to FILE.json.",
    ),
]


def check_page(output: Path | None) -> None:
    """Refuse a name that no page can have, before anything is read. Folders that are missing are made.

    Raises:
        ConfigError: it does not end in .html, is a folder, or would lie in a file.
    """
    if output is None:
        return
    if output.is_dir():
        raise ConfigError(f"--output: {output} is a folder; name a file in it, such as {output / 'page.html'}")
    if output.suffix != ".html":
        raise ConfigError(f"--output: {output} is no page's name; it ends in .html, such as {output.stem}.html")
    there = next(path for path in output.absolute().parents if path.exists())
    if not there.is_dir():
        raise ConfigError(f"--output: {there} is a file, not a folder; name another place than {output}")


def report_options(
    lengths: str | None,
    max_length_limit: int | None,
    batch: int,
    model: Path | None,
    parameters: float | None,
    layers: int | None,
    hidden: int | None,
    world_size: int,
    everything: bool,
    rows: int = 6,
) -> "ReportOptions":
    """What they say together.

    Raises:
        ConfigError: a length is none, or the model is said twice or in part.
    """
    from ..stages.sweep import CANDIDATES
    from .report.options import SEVEN_BILLION, SWEPT, ReportOptions

    numbers = (parameters, layers, hidden)
    shape = SEVEN_BILLION
    if model is not None:
        if any(number is not None for number in numbers):
            raise ConfigError("--model says what --parameters, --layers and --hidden say; give one or the other")
        from .report.shapes import shape_of_model

        shape = shape_of_model(model)
    elif any(number is not None for number in numbers):
        if parameters is None or layers is None or hidden is None:
            raise ConfigError(
                "--parameters, --layers and --hidden belong together, such as --parameters 1.2e9 --layers 16 "
                "--hidden 2048; or give --model"
            )
        from .report.shapes import shape_of_numbers

        shape = shape_of_numbers(parameters, layers, hidden)
    return ReportOptions(
        lengths=_lengths(lengths) if lengths is not None else CANDIDATES,
        max_length_limit=max_length_limit,
        batch=batch,
        world_size=world_size,
        shape=shape,
        documents=None if everything else SWEPT,
        rows=rows,
    )


def _lengths(text: str) -> tuple[int, ...]:
    from .report.choice import check_length

    try:
        found = sorted({int(one.replace("_", "")) for one in text.split(",")})
    except ValueError:
        shown = text if len(text) <= 80 else f"{text[:80]}…"
        raise ConfigError(f"--lengths {shown}: give whole numbers, such as 1024,2048,4096") from None
    for length in found:
        check_length(length)
    return tuple(found)
