"""Where a finished dataset can go: into the format of another trainer, or to the Hugging Face Hub."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ...schemas.errors import ConfigError
from ...schemas.notebook import Shown, Table
from ...schemas.units import plural, size
from ..observer import Observer
from .export import write_export
from .publish import Published, publish

HUB = "hf://"
"""How the name of a repository on the Hub begins."""


@dataclass(frozen=True, slots=True)
class ExportedSplit:
    """What was written of one split."""

    rows: int
    tokens: int
    """Tokens of the rows, with padding."""
    trained: int
    """Trained tokens."""


@dataclass(frozen=True, slots=True, repr=False)
class Exported(Shown):
    """What was written."""

    out: str
    """The folder."""
    to: str
    """The format."""
    splits: dict[str, ExportedSplit]
    files: int
    bytes: int

    def summary(self) -> str:
        return f"{self.out}, in the format of {self.to}: {plural(self.files, 'file')}, {size(self.bytes)}"

    def tables(self) -> Iterator[Table]:
        rows = ((name, split.rows, split.tokens, split.trained) for name, split in self.splits.items())
        yield Table("", ("split", "rows", "tokens", "trained tokens"), rows)


def export(
    folder: str | Path,
    to: str,
    out: str | Path | None = None,
    *,
    eos_id: int | None = None,
    private: bool = False,
    dry_run: bool = False,
    observer: Observer | None = None,
) -> Exported | Published:
    """Write a finished dataset in another trainer's format, or publish it on the Hub.

    An export has the same rows, order, splits and masks. To the Hub go the shards and the card, and nothing private.

    >>> exported = packtrain.export("packed", "mds", "packed-mds")
    >>> exported.splits["train"].rows == packtrain.open("packed").splits["train"].rows
    True

    Args:
        folder: the dataset, or its URL.
        to: the name of a format, one of `EXPORT_FORMATS` such as `mds`; or `hf://OWNER/NAME`.
        out: a new or empty folder to write; not for the Hub.
        eos_id: only for `olmo-core`: the eos_token_id of the TokenizerConfig that you train with.
        private: only for the Hub: make a new repository private. Otherwise everybody can read it.
        dry_run: only for the Hub: return the card and what would go, without asking the Hub.

    Raises:
        ConfigError: an option is not for this target, or the format would lose weights.
        InputError: the dataset is unfinished or damaged, has preference pairs, or a row that the format cannot hold.
        OutputError: the destination holds something, or cannot be written.
        StoreError: the Hub failed, or cannot be reached.
    """
    # An option that would do nothing is refused: if --private were ignored, rows could become public.
    if to.startswith(HUB):
        _refuse({"--eos-id": eos_id is not None}, "olmo-core", to)
        _refuse({"--out": out is not None}, "a format or a model", to)
        return publish(folder, to, private=private, dry_run=dry_run, observer=observer)
    _refuse({"--private": private, "--dry-run": dry_run}, f"{HUB}OWNER/NAME", to)
    if out is None:
        raise ConfigError("--out DIR is needed: the folder to write")
    note = write_export(folder, out, to, eos_id=eos_id, observer=observer)
    splits = {name: ExportedSplit(**split) for name, split in note["splits"].items()}
    return Exported(str(out), to, splits, note["files"], note["bytes"])


def _refuse(options: Mapping[str, bool], target: str, to: str) -> None:
    """Refuse options that are given, and do nothing for this target.

    Args:
        options: name → whether it is given.
        target: the target that they are for, as the message names it.
        to: the target that was asked for.

    Raises:
        ConfigError: names the first such option.
    """
    for name, is_given in options.items():
        if is_given:
            raise ConfigError(f"{name} is for --to {target}, not for {to[:80]}; leave it out")
