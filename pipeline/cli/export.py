"""`packtrain export`: a dataset in the format of another trainer or on the Hub, a sharded checkpoint as one model."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ...schemas.errors import ConfigError
from ...schemas.units import plural, size
from .options import Json, no_words
from .streams import print_json

if TYPE_CHECKING:
    from .console import ConsoleObserver

_ONLY = {
    "a format": ("--dtype", "--eos-id", "--pad-seq-to-mult", "--drop-weights"),
    "hf://OWNER/NAME": ("--private", "--dry-run"),
    "model": ("--base", "--tokenizer"),
}
"""What --to can be → the options that only this has."""
_TARGETS = ("megatron-bridge", "megatron", "mds", "olmo-core", "trl", "datasets", "model", "hf://")


def _targets(incomplete: str) -> list[str]:
    return [one for one in _TARGETS if one.startswith(incomplete)]


def export(
    folder: Annotated[
        str,
        typer.Argument(
            metavar="DIR",
            help="A finished dataset, or its URL; with --to model, a sharded checkpoint such as trained/checkpoint-2.",
            autocompletion=no_words,
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            metavar="FORMAT",
            help="megatron-bridge, megatron, mds, olmo-core, or trl (also called datasets); hf://OWNER/NAME, or "
            "hf://OWNER/NAME@BRANCH, to publish; model, to gather a checkpoint.",
            autocompletion=_targets,
        ),
    ],
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", metavar="DIR", help="A new or empty folder to write.", autocompletion=no_words),
    ] = None,
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
    private: Annotated[
        bool, typer.Option("--private", help="hf://: make a new repository private. Otherwise everybody can read it.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="hf://: print the card and what would go, without asking the Hub.")
    ] = False,
    base: Annotated[
        Path | None,
        typer.Option(help="model: the folder of the model that was trained, for checkpoints without a config.json."),
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="model: a tokenizer's folder, to copy beside the weights.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a dataset in another trainer's format, publish it on the Hub, or gather a sharded checkpoint into a model.

    An export has the same rows, order, splits and masks. To the Hub go the shards and the card, and nothing private.
    """
    from ..report.printing import say
    from .console import ConsoleObserver, make_console

    kind = "hf://OWNER/NAME" if to.startswith("hf://") else "model" if to == "model" else "a format"
    given = {
        "--dtype": dtype, "--eos-id": eos_id, "--pad-seq-to-mult": pad_seq_to_mult, "--drop-weights": drop_weights,
        "--private": private, "--dry-run": dry_run, "--base": base, "--tokenizer": tokenizer,
    }  # fmt: skip
    for owner, names in _ONLY.items():
        wrong = next((name for name in names if given[name] not in (None, False)), None)
        if owner != kind and wrong is not None:
            raise ConfigError(f"{wrong} is for --to {owner}, not for {to[:80]}; leave it out")
    if (out is None) is not (kind == "hf://OWNER/NAME"):
        fix = "--out DIR is needed: the folder to write" if out is None else f"--out is not for --to {to}; leave it out"
        raise ConfigError(fix)
    console = make_console(stderr=as_json)
    with ConsoleObserver(console) as observer:
        if kind == "model":
            _gather(Path(folder), Path(str(out)), base, tokenizer, observer, as_json)
        elif out is None:
            _publish(folder, to, private, dry_run, observer, as_json)
        else:
            from ..export.export import export as export_dataset

            made = export_dataset(
                folder, out, to, dtype=dtype, eos_id=eos_id, pad_seq_to_mult=pad_seq_to_mult,
                drop_weights=drop_weights, observer=observer,
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


def _publish(
    folder: str, target: str, private: bool, dry_run: bool, observer: "ConsoleObserver", as_json: bool
) -> None:
    from ..export.publish import publish
    from ..report.printing import say

    done, console = publish(folder, target, private=private, dry_run=dry_run, observer=observer), observer.console
    if as_json:
        print_json(asdict(done))
        return
    for line in done.card.splitlines() if dry_run else ():
        say(console, line)
    say(console, f"{target}: {plural(len(done.files), 'file')}, {size(sum(done.files.values()))}")
    for name, held in done.files.items():
        say(console, f"  {name} ({size(held)})")
    say(console, "nothing was published: --dry-run" if dry_run else f"{done.url}: commit {str(done.commit)[:12]}")


def _gather(
    checkpoint: Path, out: Path, base: Path | None, tokenizer: Path | None, observer: "ConsoleObserver", as_json: bool
) -> None:
    try:
        from ...training.sharded import export_checkpoint
    except ImportError as error:
        raise ConfigError(f"gathering weights needs {error.name}; pip install 'packtrain[train]'") from None
    from ..report.printing import say

    observer.begin("gather", 0, "B")
    made = export_checkpoint(checkpoint, out, base=base, tokenizer=tokenizer)
    observer.end()
    if as_json:
        print_json({"out": str(out), "files": made.files, "tensors": made.tensors, "bytes": made.bytes})
        return
    files = plural(made.files, "file")
    say(observer.console, f"{out}: {plural(made.tensors, 'tensor')}, {size(made.bytes)}, in {files}")
