"""The commands that give away: a dataset in the format of another trainer or on the Hub, a sharded checkpoint as one
model."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ...schemas.errors import ConfigError
from ...schemas.units import parse_size, plural, size
from .arguments import completion
from .arguments.options import Folder, Json
from .views.streams import print_json


def _bytes(text: str) -> int:
    try:
        found = parse_size(str(text))  # typer passes a default as a number
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if found < 1:
        raise typer.BadParameter("at least one byte")
    return found


def export(
    folder: Folder,
    to: Annotated[
        Literal["megatron-bridge", "megatron", "mds", "olmo-core", "trl", "datasets"],
        typer.Option(
            metavar="FORMAT", help="megatron-bridge, megatron, mds, olmo-core, or trl (also called datasets)."
        ),
    ],
    out: Annotated[
        str,
        typer.Option(
            "--out", "-o", metavar="DIR", help="A new or empty folder to write.", autocompletion=completion.path
        ),
    ],
    dtype: Annotated[
        Literal["int32", "uint32", "uint16"] | None,
        typer.Option(
            metavar="TYPE",
            help="megatron, olmo-core: the type of token ids. uint16 takes half the space, for vocabularies up to "
            "65,536.",
            show_default="int32 for megatron, uint32 for olmo-core",
        ),
    ] = None,
    eos_id: Annotated[
        int | None, typer.Option(help="olmo-core: the eos_token_id of the TokenizerConfig that you train with.")
    ] = None,
    pad_seq_to_mult: Annotated[
        int | None,
        typer.Option(
            help="megatron-bridge: pad each document so that its length at run time is a multiple of N, the "
            "pad_seq_to_mult that you train with.",
            show_default="what pack.parallel asks for, else 1",
        ),
    ] = None,
    drop_weights: Annotated[
        bool,
        typer.Option("--drop-weights", help="Leave out loss_weights, if the format has no place for them."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a finished dataset in the format of another trainer: the same rows, order, splits and masks."""
    from ..export.export import export as export_dataset
    from ..report.printing import say
    from .views.console import ConsoleObserver, make_console

    console = make_console(stderr=as_json)
    with ConsoleObserver(console) as observer:
        made = export_dataset(
            folder, out, to, dtype=dtype, eos_id=eos_id, pad_seq_to_mult=pad_seq_to_mult, drop_weights=drop_weights,
            observer=observer,
        )  # fmt: skip
    if as_json:
        print_json({"out": out, **asdict(made)})
        return
    for name, split in made.splits.items():
        rows, tokens, trained = split["rows"], split["tokens"], split["trained"]
        say(console, f"{name}: {plural(rows, 'row')}, {tokens:,} tokens, of which {trained:,} are trained")
    if made.not_carried:
        lost = " and ".join(made.not_carried)
        say(console, f"not carried, because {made.to} has no place for it: {lost}; the dataset keeps it")
    say(console, f"{out}: {plural(made.files, 'file')}, {size(made.bytes)}")


def publish(
    folder: Folder,
    target: Annotated[
        str, typer.Argument(metavar="hf://OWNER/NAME", help="The repository; hf://OWNER/NAME@BRANCH for a branch.")
    ],
    private: Annotated[
        bool, typer.Option("--private", help="Make a new repository private. Otherwise everybody can read it.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the card and list what would go, without asking the Hub.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Publish a finished dataset on the Hugging Face Hub: its shards and its card, and nothing private."""
    from ..export.publish import publish as publish_dataset
    from ..report.printing import say
    from .views.console import ConsoleObserver, make_console

    console = make_console(stderr=as_json)
    with ConsoleObserver(console) as observer:
        done = publish_dataset(folder, target, private=private, dry_run=dry_run, observer=observer)
    if as_json:
        print_json(asdict(done))
        return
    if dry_run:
        for line in done.card.splitlines():
            say(console, line)
    say(console, f"{target}: {plural(len(done.files), 'file')}, {size(sum(done.files.values()))}")
    for name, held in done.files.items():
        say(console, f"  {name} ({size(held)})")
    say(console, "nothing was published: --dry-run" if dry_run else f"{done.url}: commit {str(done.commit)[:12]}")


def export_model(
    checkpoint: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT", help="A sharded checkpoint, such as trained/checkpoint-100.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write; it must not exist.")],
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
            parser=_bytes,
            metavar="SIZE",
            help="Maximum size of a file of weights; so much is in memory.",
            show_default="1GiB",
        ),
    ] = 1 << 30,
    as_json: Json = False,
) -> None:
    """Gather a sharded checkpoint (FSDP) into one model, file by file, in bounded memory."""
    from ..report.printing import say
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
        from ...training.sharded import export_checkpoint
    except ImportError as error:
        raise ConfigError(f"gathering weights needs {error.name}; pip install 'packtrain[train]'") from None
    return export_checkpoint
