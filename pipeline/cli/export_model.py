"""`packtrain export-model`: a whole model from a sharded checkpoint."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ...schemas.errors import ConfigError
from ...schemas.units import parse_size, plural, size
from .arguments import completion
from .arguments.options import Json
from .views.streams import print_json


def _bytes(text: str) -> int:
    try:
        found = parse_size(str(text))  # typer passes a default as a number
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if found < 1:
        raise typer.BadParameter("at least one byte")
    return found


def export_model(
    checkpoint: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT", help="A sharded checkpoint, such as trained/checkpoint-100.")
    ],
    out: Annotated[Path, typer.Option(help="The folder to write; it must not exist.")],
    base: Annotated[
        Path | None,
        typer.Option(
            help="The folder of the model that was trained, for checkpoints without a config.json.",
            autocompletion=completion.path,
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="A tokenizer's folder, to copy beside the weights.", autocompletion=completion.path),
    ] = None,
    file_size: Annotated[
        int,
        typer.Option(
            parser=_bytes, metavar="SIZE", help="Most weights in one file, and in memory.", show_default="1GiB"
        ),
    ] = 1 << 30,
    as_json: Json = False,
) -> None:
    """Gather a sharded checkpoint (FSDP) into one model, file by file, in bounded memory."""
    from ..report.draw.printing import say
    from .views.console import ConsoleObserver, make_console

    export_checkpoint = _import_export()
    console = make_console(stderr=as_json)
    with ConsoleObserver(console) as observer:
        observer.begin("gather", 0, "B")
        made = export_checkpoint(checkpoint, out, base=base, tokenizer=tokenizer, file_bytes=file_size)
        observer.end()
    if as_json:
        print_json({"out": str(out), "files": made.files, "tensors": made.tensors, "bytes": made.bytes})
        return
    say(console, f"{out}: {plural(made.tensors, 'tensor')}, {size(made.bytes)}, in {plural(made.files, 'file')}")


def _import_export() -> Any:
    try:
        import torch  # noqa: F401

        from ...training.generate.export import export_checkpoint
    except ImportError as error:
        raise ConfigError(f"gathering weights needs {error.name}; pip install 'packtrain[train]'") from None
    return export_checkpoint
