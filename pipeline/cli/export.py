"""`packtrain export`: a dataset in the format of another trainer or on the Hub, a sharded checkpoint as one model."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...schemas.errors import ConfigError
from ...schemas.tables.export_formats import EXPORT_FORMATS
from ...schemas.units import plural, size
from .output import show, training_extra

if TYPE_CHECKING:
    from ..export.publish import Published
    from ..export.targets import Exported
    from ..observer import Observer
    from ..report.grid import Lines

_TARGETS = (*EXPORT_FORMATS, "model", "hf://")
_TO = f"{', '.join(EXPORT_FORMATS)}; hf://OWNER/NAME, to publish; model, to gather a checkpoint."


def _targets(incomplete: str) -> list[str]:
    return [target for target in _TARGETS if target.startswith(incomplete)]


def export(
    folder: str,
    to: Annotated[str, typer.Option(metavar="FORMAT", help=_TO, autocompletion=_targets)],
    out: Annotated[str | None, typer.Option("--out", "-o")] = None,
    eos_id: int | None = None,
    private: bool = False,
    dry_run: bool = False,
) -> None:
    """Write a dataset in another trainer's format, publish it on the Hub, or gather a sharded checkpoint into a model.

    An export has the same rows, order, splits and masks. To the Hub go the shards and the card, and nothing private.

    Args:
        folder (DIR): a finished dataset, or its URL; with --to model, a sharded checkpoint such as
            trained/checkpoint-2.
        out (DIR): a new or empty folder to write.
        eos_id: olmo-core, for NumpyFSLDataset: the eos_token_id of the TokenizerConfig that you train with.
        private: hf://: make a new repository private. Otherwise everybody can read it.
        dry_run: hf://: print the card and what would go, without asking the Hub.
    """
    if to == "model":
        for name, is_given in (("--eos-id", eos_id is not None), ("--private", private), ("--dry-run", dry_run)):
            if is_given:
                owner = "olmo-core" if name == "--eos-id" else "hf://OWNER/NAME"
                raise ConfigError(f"{name} is for --to {owner}, not for model; leave it out")
        if out is None:
            raise ConfigError("--out DIR is needed: the folder to write")
        show(partial(_gather, Path(folder), Path(out)), lambda _: iter([f"{out}: a model that transformers loads"]))
        return
    from ..export.publish import Published
    from ..export.targets import export as export_dataset

    def write(observer: "Observer") -> "Exported | Published":
        return export_dataset(folder, to, out, eos_id=eos_id, private=private, dry_run=dry_run, observer=observer)

    def view(done: "Exported | Published") -> "Lines":
        return _published_lines(to, done) if isinstance(done, Published) else _exported_lines(done)

    show(write, view)


def _exported_lines(done: "Exported") -> "Lines":
    for name, split in done.splits.items():
        yield f"{name}: {plural(split.rows, 'row')}, {split.tokens:,} tokens, of which {split.trained:,} are trained"
    yield f"{done.out}: {plural(done.files, 'file')}, {size(done.bytes)}"


def _published_lines(target: str, done: "Published") -> "Lines":
    if done.commit is None:
        yield from done.card.splitlines()
    yield f"{target}: {plural(len(done.files), 'file')}, {size(sum(done.files.values()))}"
    yield from (f"  {name} ({size(held)})" for name, held in done.files.items())
    yield f"{done.url}: commit {done.commit[:12]}" if done.commit is not None else "nothing was published: --dry-run"


def _gather(checkpoint: Path, out: Path, observer: "Observer") -> None:
    with training_extra():
        from ...training.sharded import export_checkpoint
    observer.begin("gather", 0, "B")
    export_checkpoint(checkpoint, out)
    observer.end()
