"""The commands that give away: a dataset in the format of another trainer or on the Hub, a sharded checkpoint as one
model."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...schemas.errors import ConfigError
from ...schemas.units import parse_size, plural, size
from .arguments import completion
from .arguments.options import Folder, Json, Workers
from .views.streams import print_json

if TYPE_CHECKING:
    from ..export.manifest import ExportedSplit


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
        str,
        typer.Option(
            metavar="FORMAT",
            help="megatron-bridge, megatron, mds, olmo-core, or trl (also called datasets).",
            autocompletion=completion.export,
        ),
    ],
    out: Annotated[
        str,
        typer.Option(
            "--out", "-o", metavar="DIR", help="The folder to write, or its URL.", autocompletion=completion.path
        ),
    ],
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="megatron, olmo-core: the type of token ids. uint16 takes half the space, for vocabularies up to "
            "65,536.",
            show_default="int32 for megatron, uint32 for olmo-core",
            autocompletion=completion.export_dtype,
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
    workers: Workers = None,
    as_json: Json = False,
) -> None:
    """Write a finished dataset in the format of another trainer: the same rows, order, splits and masks."""
    from ..export.driver import export as export_dataset
    from ..export.options import export_options
    from ..report.draw.printing import say
    from .views.console import ConsoleObserver, make_console

    began = time.perf_counter()
    options = export_options(to, dtype, eos_id, pad_seq_to_mult, drop_weights)
    console = make_console(stderr=as_json)
    with ConsoleObserver(console) as observer:
        outcome = export_dataset(folder, out, options, workers=workers, observer=observer)
    manifest = outcome.manifest
    written = sum(file.bytes for file in manifest.files)
    if as_json:
        print_json(
            {
                "state": "finished" if outcome.changed else "unchanged",
                "dataset": manifest.plan["dataset"],
                "to": options.to,
                "out": out,
                "manifest": manifest.hash,
                "seconds": time.perf_counter() - began,
                "files": len(manifest.files),
                "bytes": written,
                "not_carried": manifest.not_carried,
                "splits": manifest.splits,
            }
        )
        return
    for name, split in manifest.splits.items():
        say(console, f"{name}: {_split_line(split)}")
    if manifest.not_carried:
        lost = " and ".join(manifest.not_carried)
        say(console, f"not carried, because {options.to} has no place for it: {lost}; the dataset keeps it")
    say(console, f"{out}: {plural(len(manifest.files), 'file')}, {size(written)}; manifest {manifest.hash[:16]}")


def publish(
    folder: Folder,
    target: Annotated[
        str, typer.Argument(metavar="hf://OWNER/NAME", help="The repository; hf://OWNER/NAME@BRANCH for a branch.")
    ],
    private: Annotated[
        bool, typer.Option("--private", help="Make a new repository private. Otherwise everybody can read it.")
    ] = False,
    extras: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="WHAT",
            help="Also publish the report (rows as text, and paths), the rejects, the documents (ids and files) or the "
            "manifest (names of inputs). May be repeated.",
            autocompletion=completion.publish_extra,
        ),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Remove everything else from the repository, in the same commit.")
    ] = False,
    staging: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where the Parquet files are written first; they stay there.",
            show_default="the user's cache, until they are uploaded",
            autocompletion=completion.path,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would go, without asking the Hub.")] = False,
    workers: Workers = None,
    as_json: Json = False,
) -> None:
    """Publish a finished dataset on the Hugging Face Hub: as Parquet, with its card, and nothing private."""
    from ..export.publish import Listing
    from ..export.publish import publish as publish_dataset
    from ..report.draw.printing import say
    from .views.console import ConsoleObserver, make_console

    began = time.perf_counter()
    console = make_console(stderr=as_json)

    def show(listing: Listing) -> None:
        held = sum(file.bytes for file in listing.files)
        say(console, f"{listing.target}: {plural(len(listing.files), 'file')}, {size(held)}")
        for file in listing.files:
            say(console, f"  {file.name} ({size(file.bytes)})")
        for name in listing.removed:
            say(console, f"  {name} is removed", "yellow")
        say(console, f"not published: {', '.join(listing.kept)}", "dim")

    with ConsoleObserver(console) as observer:
        done = publish_dataset(
            folder,
            target,
            extras=extras or (),
            private=private,
            replace=replace,
            staging=staging,
            dry_run=dry_run,
            workers=workers,
            observer=observer,
            show=show,
        )
    state = "dry run" if done.commit is None else "published" if done.sent or done.listing.removed else "unchanged"
    if as_json:
        print_json(
            {
                "state": state,
                "dataset": done.listing.dataset,
                "repository": done.listing.target.repository,
                "revision": done.listing.target.revision,
                "url": done.url,
                "commit": done.commit,
                "seconds": time.perf_counter() - began,
                "files": {file.name: file.bytes for file in done.listing.files},
                "sent": [file.name for file in done.sent],
                "removed": done.listing.removed,
                "not_published": done.listing.kept,
            }
        )
    elif state == "dry run":
        say(console, "nothing was published: --dry-run")
    elif state == "published":
        sent = sum(file.bytes for file in done.sent)
        say(console, f"{done.url}: {plural(len(done.sent), 'file')} sent, {size(sent)}; commit {str(done.commit)[:12]}")


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


def _split_line(split: "ExportedSplit") -> str:
    padding = f", plus {split.padding:,} of padding that the export adds" if split.padding else ""
    return (
        f"{plural(split.rows, 'row')}, {plural(split.pieces, 'document')}, {split.tokens:,} tokens, of which "
        f"{split.trained:,} are trained{padding}"
    )


def _import_export() -> Any:
    try:
        import torch  # noqa: F401

        from ...training.generate.export import export_checkpoint
    except ImportError as error:
        raise ConfigError(f"gathering weights needs {error.name}; pip install 'packtrain[train]'") from None
    return export_checkpoint
