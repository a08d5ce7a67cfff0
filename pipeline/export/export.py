"""`packtrain export`: a finished dataset in the format of another trainer, with the same rows, order and splits.

The dataset is verified, the rows are written beside the destination, and the folder is renamed once it is complete.
"""

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...schemas.dataset.names import MANIFEST, PLAN
from ...schemas.errors import ConfigError, InputError, IntegrityError, OutputError
from ...schemas.fingerprint import version
from ...schemas.jsontext import indented_json
from ...schemas.tables.columns import WEIGHTS, schema_of
from ..dataset.open_dataset import Finished, open_dataset
from ..dataset.verify import verify
from ..observer import Observer
from ..store.local import require_no_file_above, store_error, sync_folder
from ..store.open_store import is_url
from .foreign_formats import FORMATS, WITH_EMPTY_SHARDS, Layout, MisfitError

NOTE = "export.json"
"""What an export says of itself: the hash of the dataset's manifest, the format `to`, for each of `splits` its `rows`,
`tokens` and `trained` tokens, as the manifest counts them, and how many `files` and `bytes` it has."""
_CARRY_ALL = ("mds", "trl")


def write_export(
    dataset: str | Path,
    out: str | Path,
    to: str,
    *,
    eos_id: int | None = None,
    observer: Observer | None = None,
) -> dict[str, Any]:
    """Write a finished dataset in another format. Returns what `NOTE` holds. The destination is complete or not there.

    Args:
        dataset: its folder or URL.
        out: a folder that does not exist, or is empty.
        to: a key of `FORMATS`.
        eos_id: for `olmo-core`; see `Layout`.

    Raises:
        ConfigError: an option cannot be used, or the format would lose weights.
        InputError: the dataset is unfinished or damaged, has preference pairs, or a row that the format cannot hold.
        OutputError: the destination holds something, lies inside a dataset, or cannot be written.
    """
    observer = observer or Observer()
    _check_options(to, eos_id)
    place = _free(out)
    source = open_sound(dataset, observer)
    manifest = source.manifest
    if manifest.preference:
        raise InputError(
            f"{dataset} holds preference pairs, which are not packed; datasets.load_from_disk reads them as they are"
        )
    if to not in _CARRY_ALL and WEIGHTS in manifest.schema:
        raise ConfigError(
            f"--to {to} has no place for loss_weights, and without them every trained token counts the same, which is "
            f"another objective; take --to {' or '.join(_CARRY_ALL)}, or pack without weights"
        )
    multiple = _multiple(source) if to == "megatron-bridge" else 1
    layout = Layout(
        schema_of(manifest.schema), manifest.row_length, manifest.pad_id, manifest.hash,
        eos_id=eos_id, multiple=multiple,
    )  # fmt: skip
    splits = {
        name: {"rows": split.rows, "tokens": split.tokens, "trained": split.trained}
        for name, split in manifest.splits.items()
    }
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{place.name}-", suffix=".part") as beside:
            draft = Path(beside) / place.name
            draft.mkdir()
            _write(source, draft, to, layout, observer)
            files = [path for path in draft.rglob("*") if path.is_file()]
            note = {
                "dataset": manifest.hash,
                "to": to,
                "splits": splits,
                "files": len(files),
                "bytes": sum(path.stat().st_size for path in files),
                "packtrain": version("packtrain"),
                "pyarrow": pa.__version__,
            }
            (draft / NOTE).write_bytes(indented_json(note, 1))
            for path in [draft, *draft.rglob("*")]:
                sync_folder(path)
            draft.rename(place)
            sync_folder(place.parent)
    except OSError as error:
        raise store_error(error, place) from error
    return note


def open_sound(dataset: str | Path, observer: Observer) -> Finished:
    """Open a finished dataset, after comparing every byte with its hash and checking its rows.

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
    if findings := verify(source.store.url, deep=True, observer=observer).findings:
        raise InputError(
            f"{source.store.url} is damaged: {findings[0]}; packtrain verify {source.store.url} --repair rebuilds it"
        )
    return source


def _check_options(to: str, eos_id: int | None) -> None:
    if to not in FORMATS:
        known = ", ".join((*FORMATS, "hf://OWNER/NAME", "model"))
        raise ConfigError(f"--to {to[:80]}: choose one of {known}")
    if eos_id is not None and (to != "olmo-core" or not 0 <= eos_id < 2**31):
        raise ConfigError(
            "--eos-id is for --to olmo-core, if NumpyFSLDataset will read it: the eos_token_id of the TokenizerConfig "
            "that you train with, by which that class finds where documents end"
        )


def _multiple(source: Finished) -> int:
    """The `pad_seq_to_mult` that a dataset's `pack.parallel` asks for."""
    parallel = source.manifest.pack.parallel
    if parallel is not None and parallel.layout != "thd" and parallel.cp > 1:
        raise ConfigError(
            "--to megatron-bridge: with context parallelism it divides documents between ranks, but the dataset is "
            f"packed with pack.parallel.layout={parallel.layout}, which pads only rows; pack with layout=thd"
        )
    return parallel.document_multiple if parallel is not None else 1


def _free(out: str | Path) -> Path:
    """The destination, which may be written.

    Raises:
        ConfigError: it is a URL.
        OutputError: it holds something, is no folder, or lies below a file or inside a dataset or an export.
    """
    if is_url(str(out)):
        raise ConfigError(f"--out {out}: an export is written to a folder of this machine; copy it from there")
    place = Path(out).absolute()
    require_no_file_above(Path(out), "--out")
    if os.path.lexists(place) and not (place.is_dir() and not place.is_symlink()):
        raise OutputError(f"--out {out} is there already, and no folder; choose another folder")
    if place.is_dir() and any(place.iterdir()):
        raise OutputError(f"--out {out} is not empty; delete it, or choose another folder")
    for folder in place.resolve().parents:
        dataset = (folder / MANIFEST).exists() and (folder / "documents.parquet").exists()
        if dataset or (folder / PLAN).exists() or (folder / NOTE).exists():
            raise OutputError(f"--out {out} lies inside {folder}, a dataset or an export; choose another folder")
    return place


def _write(source: Finished, draft: Path, to: str, layout: Layout, observer: Observer) -> None:
    splits = source.manifest.splits
    observer.begin("export", sum(split.tokens for split in splits.values()), "tok")
    for name, split in splits.items():
        before, layout = 0, replace(layout, shards=len(split.shards))
        for index, shard in enumerate(split.shards):
            try:
                if shard.rows or to in WITH_EMPTY_SHARDS:
                    FORMATS[to](source.sound_batches(shard), draft, name, index, layout)
            except MisfitError as error:
                row = before + error.row
                raise InputError(f"row {row} of split {name} cannot be exported to {to}: {error}") from None
            before += shard.rows
            observer.advance(shard.tokens, rows=shard.rows, tokens=shard.tokens)
    observer.end()
