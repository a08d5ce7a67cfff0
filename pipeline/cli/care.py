"""Around a run: `prep` writes examples alone; `wait`, `verify` and `clean` look after datasets and caches; `export`
gives datasets and checkpoints to other tools.
"""

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...schemas.errors import ConfigError, InputError, did_you_mean
from ...schemas.escape import escape_line, without_secrets
from ...schemas.tables.export_formats import EXPORT_FORMATS
from ...schemas.units import plural, size
from .options import Config, Folder, Format, Input, Json, Set, choices, load_run
from .output import print_json, print_line, print_lines, show_progress, training_extra

if TYPE_CHECKING:
    from ..dataset.verify import Verification
    from ..export.publish import Published
    from ..export.targets import Exported
    from ..report.grid import Lines
    from ..run.prep_only import PrepCounts
    from ..run.repair import Repair

_MAX_LISTED_FILES = 3
"""Files of a cache that are listed before they are removed: the names are hashes, which say little."""
_TARGETS = (*EXPORT_FORMATS, "model", "hf://")
"""What a shell offers after --to."""
_TO_HELP = f"{', '.join(EXPORT_FORMATS)}; hf://OWNER/NAME, to publish; model, to gather a checkpoint."


def wait(folder: str, timeout: Annotated[float, typer.Option(min=0)] = 3600.0) -> None:
    """Wait until a dataset is finished. Fails if its run fails or dies, or if the time runs out.

    Args:
        folder (DIR): the folder that a run is writing, or its URL.
        timeout (SECONDS): longest wait.
    """
    from ..dataset.wait import wait as wait_for

    print_line(f"{without_secrets(folder)} is finished: manifest {wait_for(folder, timeout).hash[:16]}")


def verify(folder: Folder, deep: bool = False, repair: Path | None = None, as_json: Json = False) -> None:
    """Check a dataset against its manifest, and every row's invariants; with --repair, rebuild what is damaged.

    Args:
        deep: also check every byte against its hash.
        repair (CONFIG): rebuild damaged and missing files, byte for byte, with this configuration of the run.
    """
    from ..dataset.verify import verify as check
    from ..run.repair import repair as rebuild

    name = without_secrets(folder)
    outcome: Verification | Repair
    with show_progress(as_json=as_json) as observer:
        if repair is None:
            outcome = check(folder, deep=deep, observer=observer)
            lines = _verified_lines(name, deep, outcome)
        else:
            outcome = rebuild(folder, repair, observer=observer)
            lines = _repaired_lines(name, outcome)
    if as_json:
        print_json({"folder": name, "sound": outcome.sound, "findings": outcome.findings})
    else:
        print_lines(lines)
    # A script reads the exit code: an unsound dataset is a result, and no error of the command.
    if not outcome.sound:
        raise typer.Exit(1)


def _verified_lines(folder: str, deep: bool, outcome: "Verification") -> "Lines":
    """What a check has found, and the verdict.

    Args:
        deep: whether every byte was checked.
    """
    # The findings come first, so that the verdict is the last line: that one stays visible in a terminal.
    yield from map(str, outcome.findings)
    counts = ((outcome.files, "file"), (outcome.rows, "row"), (outcome.tokens, "token"))
    checked = ", ".join(plural(number, noun) for number, noun in counts)
    if not outcome.sound:
        yield f"{folder} does NOT match its manifest: {plural(len(outcome.findings), 'finding')} in {checked}"
        # A stray file does not belong to the dataset: its owner has to remove it, and no repair would help.
        if not all(finding.is_stray for finding in outcome.findings):
            yield f"packtrain verify {folder} --repair run.yaml rebuilds what is damaged, with the run's configuration"
        return
    how = "every byte matches its hash" if deep else "sizes and rows agree; --deep checks every byte against its hash"
    yield f"{folder} is sound: {checked}; {how}"


def _repaired_lines(folder: str, outcome: "Repair") -> "Lines":
    """What a repair has found wrong, whether it still is, and the verdict."""
    for finding in outcome.findings:
        yield f"{'still' if finding in outcome.remaining else 'was'} wrong: {finding}"
    if not outcome.sound:
        yield f"{folder} is NOT sound: rebuilding files cannot fix what is still wrong"
        return
    # The same hash: a repair rebuilds bytes, and never another dataset.
    yield f"{folder} is sound: manifest {outcome.manifest.hash[:16]}, as before"


def clean(
    cache: str,
    older_than: Annotated[float, typer.Option(min=0)] = 7.0,
    yes: bool = False,
) -> None:
    """List the old encoded parts and copies of a cache; with --yes, remove them and what killed runs left behind.

    Args:
        cache (CACHE): the folder of a cache, such as .packtrain-cache beside a run's output.
        older_than (DAYS): keep files used within this many days; 0 keeps none.
        yes: remove the files.
    """
    from ..dataset.clean import old_files, remove_files
    from ..store.local import LocalStore
    from ..store.open_store import open_store, resolve_place

    store = open_store(resolve_place(cache, Path.cwd()))
    # Of an object store's files, only the store knows when they were used last.
    if not isinstance(store, LocalStore):
        raise ConfigError(
            f"the cache {cache} is not on this machine; let a lifecycle rule of the store expire its objects, and "
            "clean the copies of this machine, in PACKTRAIN_CACHE or ~/.cache/packtrain"
        )
    if not store.root.is_dir():
        raise InputError(f"there is no folder {cache}; give a cache, such as .packtrain-cache beside a run's output")
    bytes_of_path = old_files(store, days=older_than)
    files = f"{plural(len(bytes_of_path), 'file')}, {size(sum(bytes_of_path.values()))}"
    if yes:
        remove_files(store, bytes_of_path)  # also if there is none: killed runs may have left something
        print_line(f"removed {files}; a run makes again what it needs")
        return
    days = f"{older_than:g} {'day' if older_than == 1 else 'days'}"
    if not bytes_of_path:
        print_line(f"nothing to remove: every file of {cache} was used within {days}")
        return
    for path in islice(bytes_of_path, _MAX_LISTED_FILES):
        print_line(f"{path} ({size(bytes_of_path[path])})")
    print_line(f"{files}, not used within {days}; --yes removes them")


def prep(
    output: Annotated[Path, typer.Option("--output", "-o", "--out")],
    config: Config = None,
    input: Input = None,
    format: Format = None,
    source: str | None = None,
    prompt_only: bool = False,
    settings: Set = None,
) -> None:
    """Read sources and write examples in the prompt/completion form that other tools read. No tokenizer is needed.

    Args:
        output: the file to write, .jsonl.
        prompt_only: write prompts only, for test sets.
        source: which source, if the configuration has several.
    """
    from ..run.prep_only import prepare_source

    loaded, base = load_run(config, settings, input, format=format)
    chosen = [candidate for candidate in loaded.sources if source is None or candidate.name == source]
    # Several sources cannot go into one file, whose rows would not say which they are of.
    if len(chosen) != 1:
        names = [candidate.name for candidate in loaded.sources]
        raise ConfigError(f"--source: choose one of {', '.join(names)}{did_you_mean(source or '', names)}")
    with show_progress() as observer:
        counts = prepare_source(chosen[0], base, output, prompt_only=prompt_only, observer=observer)
    print_lines(_prepared_lines(output, counts))


def _prepared_lines(output: Path, counts: "PrepCounts") -> "Lines":
    """How many examples were written, and what was left out, with the reasons."""
    yield f"{output}: {plural(counts.examples, 'example')} from {plural(counts.rows, 'row')}"
    left_out = {"rejected": counts.rejected, "filtered": counts.filtered, "never made": counts.skipped}
    for label, number_of_reason in left_out.items():
        for reason, number in sorted(number_of_reason.items()):
            yield f"  {label}: {reason} {number:,}"
    if counts.first_reject:
        yield f"  the first rejected row: {escape_line(counts.first_reject)}"


def export(
    folder: str,
    to: Annotated[str, typer.Option(metavar="FORMAT", help=_TO_HELP, autocompletion=choices(*_TARGETS))],
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
        # Refused, because an option that does nothing leaves its user with a wrong belief.
        for name, is_given in (("--eos-id", eos_id is not None), ("--private", private), ("--dry-run", dry_run)):
            if is_given:
                owner = "olmo-core" if name == "--eos-id" else "hf://OWNER/NAME"
                raise ConfigError(f"{name} is for --to {owner}, not for model; leave it out")
        if out is None:
            raise ConfigError("--out DIR is needed: the folder to write")
        _gather(Path(folder), Path(out))
        return
    from ..export.publish import Published
    from ..export.targets import export as export_dataset

    with show_progress() as observer:
        outcome = export_dataset(folder, to, out, eos_id=eos_id, private=private, dry_run=dry_run, observer=observer)
    if isinstance(outcome, Published):
        print_lines(_published_lines(to, outcome))
    else:
        print_lines(_exported_lines(outcome))


def _exported_lines(exported: "Exported") -> "Lines":
    """What an export has written."""
    for name, split in exported.splits.items():
        yield f"{name}: {plural(split.rows, 'row')}, {split.tokens:,} tokens, of which {split.trained:,} are trained"
    yield f"{exported.out}: {plural(exported.files, 'file')}, {size(exported.bytes)}"


def _published_lines(target: str, published: "Published") -> "Lines":
    """What went to the Hub; of a dry run, what would go.

    Args:
        target: such as hf://OWNER/NAME.
    """
    # The card is the one page that everybody will read: a dry run shows it whole, to be checked before it is public.
    if published.commit is None:
        yield from published.card.splitlines()
    yield f"{target}: {plural(len(published.files), 'file')}, {size(sum(published.files.values()))}"
    for name, file_bytes in published.files.items():
        yield f"  {name} ({size(file_bytes)})"
    if published.commit is None:
        yield "nothing was published: --dry-run"
    else:
        yield f"{published.url}: commit {published.commit[:12]}"


def _gather(checkpoint: Path, out: Path) -> None:
    """Write a sharded checkpoint as one model."""
    with training_extra():
        from ...training.models.sharded import export_checkpoint
    with show_progress() as observer:
        observer.begin("gather", total=0, unit="B")  # of unknown size: the shards are read as a whole
        export_checkpoint(checkpoint, out)
        observer.end()
    print_line(f"{out}: a model that transformers loads")
