"""`packtrain export`: a finished dataset in the format of another trainer, with the same rows, order and splits.

The dataset is verified, the rows are written beside the destination, and the folder is renamed once it is complete.
"""

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...schemas.dataset.manifest import Manifest
from ...schemas.dataset.names import MANIFEST, PLAN
from ...schemas.errors import ConfigError, InputError, IntegrityError, OutputError
from ...schemas.fingerprint import version
from ...schemas.jsontext import indented_json
from ...schemas.tables.columns import WEIGHTS, schema_of, shares_tokens
from ...schemas.tables.export_formats import EXPORT_FORMATS
from ..dataset.decode import tokenizer_folder
from ..dataset.open_dataset import Finished, open_dataset
from ..dataset.verify import verify
from ..observer import Observer
from ..store.local import require_no_file_above, store_error, sync_folder
from ..store.open_store import is_url
from .foreign_formats import WRITERS, Layout, MisfitError
from .untrained_labels import UntrainedLabels

NOTE_FILE = "export.json"
"""What an export says of itself: the hash of the dataset's manifest, the format `to`, for each of `splits` its `rows`,
`tokens` and `trained` tokens, as the manifest counts them, and how many `files` and `bytes` it has."""


def write_export(
    dataset: str | Path,
    out: str | Path,
    to: str,
    *,
    eos_id: int | None = None,
    observer: Observer | None = None,
) -> dict[str, Any]:
    """Write a finished dataset in another format. The destination is complete or not there.

    Returns what `NOTE_FILE` holds.

    Args:
        dataset: its folder or URL.
        out: a folder that does not exist, or is empty.
        to: a key of `EXPORT_FORMATS`.
        eos_id: for `olmo-core`, the token after which its reader ends a document; None if it reads bounds from files.

    Raises:
        ConfigError: an option cannot be used, or the format would lose weights.
        InputError: the dataset is unfinished or damaged, has preference pairs, or a row that the format cannot hold.
        OutputError: the destination holds something, lies inside a dataset, or cannot be written.
    """
    observer = observer or Observer()
    # Mistakes in options are found before the dataset is read and verified, which takes minutes.
    _check_options(to, eos_id)
    destination = _free_destination(out)
    source = open_sound(dataset, observer)
    manifest = source.manifest
    _require_exportable(dataset, manifest, to)
    document_multiple = 1
    if EXPORT_FORMATS[to].pads_documents:
        document_multiple = _document_multiple(source, to)
    layout = Layout(
        schema=schema_of(manifest.schema),
        row_length=manifest.row_length,
        pad_id=manifest.pad_id,
        dataset=manifest.hash,
        eos_id=eos_id,
        document_multiple=document_multiple,
    )
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        # Beside the destination, so that it is on the same disk, and can be renamed.
        with tempfile.TemporaryDirectory(
            dir=destination.parent, prefix=f".{destination.name}-", suffix=".part"
        ) as temporary:
            draft = Path(temporary) / destination.name
            draft.mkdir()
            _write(source, draft, to, layout, observer)
            note = _export_note(manifest, to, draft)
            (draft / NOTE_FILE).write_bytes(indented_json(note, 1))
            # First all that the folder holds goes to the disk, then its name: a power failure leaves all or nothing.
            for path in [draft, *draft.rglob("*")]:
                sync_folder(path)
            draft.rename(destination)
            sync_folder(destination.parent)
    except OSError as error:
        raise store_error(error, destination) from error
    return note


def _require_exportable(dataset: str | Path, manifest: Manifest, to: str) -> None:
    """Refuse a dataset that the format has no place for.

    Args:
        dataset: its folder or URL, for messages.

    Raises:
        ConfigError: the format would lose weights.
        InputError: it has preference pairs, or documents that share tokens.
    """
    if manifest.has_packed_pairs:
        raise InputError(
            f"{dataset} holds preference pairs, whose two sides other trainers would train as two documents; "
            "packtrain's loader reads them, and pack.strategy none writes them for TRL's DPOTrainer"
        )
    if manifest.has_unpacked_pairs:
        raise InputError(
            f"{dataset} holds preference pairs, which are not packed; datasets.load_from_disk reads them as they are"
        )
    if shares_tokens(manifest.schema):
        raise InputError(
            f"{dataset} has rows whose documents share tokens (pack.share), and {to} has no place for them; pack with "
            "pack.share: none to export"
        )
    if WEIGHTS in manifest.schema and not EXPORT_FORMATS[to].has_all_columns:
        with_weights = [name for name, form in EXPORT_FORMATS.items() if form.has_all_columns]
        raise ConfigError(
            f"--to {to} has no place for loss_weights, and without them every trained token counts the same, which is "
            f"another objective; take --to {' or '.join(with_weights)}, or pack without weights"
        )


def _export_note(manifest: Manifest, to: str, draft: Path) -> dict[str, Any]:
    """What `NOTE_FILE` holds.

    Args:
        draft: the folder with all files of the export but the note.
    """
    splits = {}
    for name, split in manifest.splits.items():
        splits[name] = {"rows": split.rows, "tokens": split.tokens, "trained": split.trained}
    files = [path for path in draft.rglob("*") if path.is_file()]
    return {
        "dataset": manifest.hash,
        "to": to,
        "splits": splits,
        "files": len(files),
        "bytes": sum(path.stat().st_size for path in files),
        "packtrain": version("packtrain"),
        "pyarrow": pa.__version__,
    }


def open_sound(dataset: str | Path, observer: Observer) -> Finished:
    """Open a finished dataset, compare every byte with its hash, and check its rows.

    Raises:
        InputError: it is unfinished or damaged.
    """
    try:
        source = open_dataset(dataset)
    except IntegrityError as error:
        raise InputError(str(error)) from error
    for name in source.manifest.splits:
        if not name.isidentifier() or not name.isascii():  # it becomes part of file names
            raise InputError(
                f"{dataset}: its manifest has a split named {name[:80]!r}; packtrain run writes no such name"
            )
    url = source.store.url
    findings = verify(url, deep=True, observer=observer).findings
    damage = [finding for finding in findings if not finding.is_stray]
    if damage:
        raise InputError(f"{url} is damaged: {damage[0]}; packtrain verify {url} --repair rebuilds it")
    if findings:
        raise InputError(f"{url} has a file that its manifest does not list: {findings[0]}")
    return source


def _check_options(to: str, eos_id: int | None) -> None:
    """Refuse an unknown format, and an end-of-sequence token for a format that needs none.

    Raises:
        ConfigError: names the formats, or says what the token is for.
    """
    if to not in EXPORT_FORMATS:
        targets = ", ".join((*EXPORT_FORMATS, "hf://OWNER/NAME", "model"))
        raise ConfigError(f"--to {to[:80]}: choose one of {targets}")
    if eos_id is None:
        return
    is_token = 0 <= eos_id < 2**31  # rows store ids as int32
    if not is_token or not EXPORT_FORMATS[to].takes_eos_id:
        raise ConfigError(
            "--eos-id is for --to olmo-core, if NumpyFSLDataset will read it: the eos_token_id of the TokenizerConfig "
            "that you train with, by which that class finds where documents end"
        )


def _document_multiple(source: Finished, to: str) -> int:
    """The multiple to which the reader will pad documents, so that the devices that `pack.parallel` asks for can divide
    them; 1 without `pack.parallel`.

    Raises:
        ConfigError: the dataset is packed for devices that divide rows, and not documents.
    """
    parallel = source.manifest.pack.parallel
    # The layouts `ring` and `ulysses` divide rows. With one device (cp 1), none divides anything.
    if parallel is not None and parallel.layout != "thd" and parallel.cp > 1:
        raise ConfigError(
            f"--to {to}: with context parallelism it divides documents between ranks, but the dataset is "
            f"packed with pack.parallel.layout={parallel.layout}, which pads only rows; pack with layout=thd"
        )
    return parallel.document_multiple if parallel is not None else 1


def _free_destination(out: str | Path) -> Path:
    """The destination, which may be written.

    Raises:
        ConfigError: it is a URL.
        OutputError: it holds something, is no folder, or lies below a file or inside a dataset or an export.
    """
    if is_url(str(out)):
        raise ConfigError(f"--out {out}: an export is written to a folder of this machine; copy it from there")
    destination = Path(out).absolute()
    require_no_file_above(Path(out), "--out")
    is_folder = destination.is_dir() and not destination.is_symlink()
    if os.path.lexists(destination) and not is_folder:
        raise OutputError(f"--out {out} is there already, and no folder; choose another folder")
    if is_folder and any(destination.iterdir()):
        # It may hold anything, even the dataset that is exported: nothing is said of deleting it.
        raise OutputError(f"--out {out} is not empty; choose a folder that is empty, or not there yet")
    # Files in a dataset's folder that it does not list would make it damaged. A manifest alone may be another
    # program's, and a run that is not finished has only its plan.
    for folder in destination.resolve().parents:
        is_dataset = (folder / MANIFEST).exists() and (folder / "documents.parquet").exists()
        if is_dataset or (folder / PLAN).exists() or (folder / NOTE_FILE).exists():
            raise OutputError(f"--out {out} lies inside {folder}, a dataset or an export; choose another folder")
    return destination


def _find_untrained_labels(source: Finished, observer: Observer) -> UntrainedLabels | None:
    """A counter of the labels that Megatron-Bridge does not train; None, with a note, if the run's tokenizer, by which
    it tells words from white space, is not there any more.
    """
    try:
        return UntrainedLabels(tokenizer_folder(source))
    except InputError as error:
        observer.note(
            f"{error}, so it is not known whether there are labels that Megatron-Bridge does not train: those right "
            "behind an end-of-sequence token"
        )
        return None


def _write(source: Finished, draft: Path, to: str, layout: Layout, observer: Observer) -> None:
    """Write all shards into the draft of the destination.

    Raises:
        InputError: the format cannot hold a row; names it.
    """
    # Of all readers, that of Megatron-Bridge alone leaves labels out that the mask wants trained.
    untrained = _find_untrained_labels(source, observer) if to == "megatron-bridge" else None
    splits = source.manifest.splits
    observer.begin("export", sum(split.tokens for split in splits.values()), "tok")
    for name, split in splits.items():
        split_layout = replace(layout, shards=len(split.shards))
        first_row = 0  # of the shard in the split
        for index, shard in enumerate(split.shards):
            # A held-out split may have a shard without rows; some readers fail on a file without rows.
            if shard.rows or EXPORT_FORMATS[to].has_empty_shards:
                batches = source.sound_batches(shard)
                if untrained is not None:
                    batches = untrained.check(batches)
                try:
                    WRITERS[to](batches, draft, name, index, split_layout)
                except MisfitError as error:
                    row = first_row + error.row  # the writer counts from the start of the shard
                    raise InputError(f"row {row} of split {name} cannot be exported to {to}: {error}") from None
            first_row += shard.rows
            observer.advance(shard.tokens, rows=shard.rows, tokens=shard.tokens)
    observer.end()
    if untrained is not None and untrained.count:
        observer.note(
            f"Megatron-Bridge does not train {untrained.count:,} labels right behind an end-of-sequence token; all are "
            "white space or special tokens"
        )
