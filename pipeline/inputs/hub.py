"""Datasets of the Hugging Face Hub, loaded by the `datasets` library."""

import os
import urllib.error
import urllib.request
from pathlib import Path

import msgspec

from ...schemas.errors import ConfigError
from ...schemas.fingerprint import fingerprint
from ..store.local import LocalStore
from ..store.sealed_notes import get_note, put_note
from .blocks import FoundInput

_TIMEOUT_SECONDS = 5
"""Within which the hub must answer."""
_FOLDER = "hub"
"""The cache folder of what the library has made, and of notes about it for runs without a connection."""


def choose_split(splits: list[str], configured: str | None, where: str, dataset: str) -> str:
    """The split to use.

    Args:
        splits: names of the dataset's splits.
        configured: the source's `split`; None if it has none.
        where: the key of the source's path, for messages.
        dataset: what has the splits, for messages.

    Raises:
        ConfigError: it does not exist, or there are several and none is given.
    """
    if configured is None and len(splits) == 1:
        return splits[0]
    if configured is None or configured not in splits:
        names = ", ".join(splits) or "(none)"
        problem = f"no split {configured!r}; it has {names}" if configured else f"the splits {names}; say which one"
        raise ConfigError(f"{where.removesuffix('path')}split: {dataset} has {problem}")
    return configured


class _LoadedFiles(msgspec.Struct):
    """The files that the library made of one dataset, subset, split and revision."""

    files: list[str]
    """Names in the cache."""


def load_hub_dataset(name: str, subset: str | None, split: str | None, cache: Path, where: str) -> list[FoundInput]:
    """The Arrow files of one split of a dataset.

    Without a connection, these are the files that the same arguments gave before, by a note. The library itself would
    give whatever revision it loaded last.

    Args:
        name: `owner/name`, optionally followed by `@revision`.
        subset: None if the source names none.
        split: None if the source names none; then the dataset must have only one.
        where: the key of the configuration, for messages.

    Raises:
        ConfigError: there is no such dataset, subset or split, or the hub is unreachable and the dataset is not cached.
    """
    repository, _, revision = name.partition("@")
    question = {"name": repository, "subset": subset, "split": split, "revision": revision or None}
    store = LocalStore(cache)
    note = f"{_FOLDER}/{fingerprint(question)}.json"
    if _is_reachable():
        files = _load(repository, revision or None, subset, split, cache / _FOLDER, where)
        # A note names files relative to the cache, so files outside of it cannot be noted: the library may use
        # a file where it lies.
        if all(file.is_relative_to(cache / _FOLDER) for file in files):
            put_note(store, note, _LoadedFiles([file.relative_to(cache).as_posix() for file in files]))
    else:
        files = _files_loaded_before(store, note)
        if not files:
            raise ConfigError(
                f"{where}: the hub cannot be reached, and the cache does not have {repository} as it is asked for "
                "here; load it with a connection, save it with `save_to_disk`, and give that folder here"
            )
    inputs = []
    for file in files:
        status = file.stat()
        alias = f"{repository}/{_label(file, Path(repository).name)}"
        origin = f"hf://{name}/{file.name}"
        entry = FoundInput(name=str(file), size=status.st_size, stamp=status.st_ctime_ns, alias=alias, origin=origin)
        inputs.append(entry)
    return inputs


def _files_loaded_before(store: LocalStore, note: str) -> list[Path]:
    """The files that a note names; none if there is no note, or one of them is not there any more."""
    loaded_before = get_note(store, note, _LoadedFiles)
    files = [store.path(name) for name in loaded_before.files] if loaded_before is not None else []
    # What a cache has must not lead out of it.
    are_there = all(file.is_file() and not file.is_symlink() for file in files)
    return files if are_there else []


def _load(
    name: str, revision: str | None, subset: str | None, split: str | None, cache: Path, where: str
) -> list[Path]:
    """The files that the library makes. JSON is read as it is: by default it makes other rows of what looks like an
    agent's trace.
    """
    import datasets  # takes seconds
    import huggingface_hub.utils

    # packtrain shows its own bar of progress.
    datasets.disable_progress_bars()
    huggingface_hub.utils.disable_progress_bars()
    options = {"name": subset, "revision": revision, "cache_dir": str(cache)}
    try:
        try:
            splits = datasets.load_dataset(name, **options, parse_agent_traces=False)
        except ValueError as error:  # the files are not JSON
            if "'parse_agent_traces' key" not in str(error):
                raise
            splits = datasets.load_dataset(name, **options)
    except Exception as error:  # the library's own, and those of what it uses
        problem = f"{type(error).__name__}: {' '.join(str(error).split())}"[:600]
        raise ConfigError(
            f"{where}: the datasets library cannot load {name} ({problem}); check the name, `subset` and `split`, and "
            "log in if it is not public"
        ) from error
    names = [str(split_name) for split_name in splits]
    chosen_split = choose_split(names, configured=split, where=where, dataset=name)
    return [Path(file["filename"]) for file in splits[chosen_split].cache_files]


def _label(file: Path, stem: str) -> str:
    """`name-train` for the library's `name-train.arrow`, and `name-train-00001` for `name-train-00001-of-00003.arrow`.

    Args:
        stem: what to call it in place of the library's `name`.
    """
    parts = file.stem.split("-")
    is_numbered = len(parts) > 3 and parts[-2] == "of"
    kept_parts = parts[-1:]  # [train]
    if is_numbered:
        kept_parts = parts[-4:-2]  # [train, 00001] of [name, train, 00001, of, 00003]
    return "-".join([stem, *kept_parts])


def _is_reachable() -> bool:
    """Whether the hub answers at all. The library reports missing names and permissions itself."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        return False
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        with urllib.request.urlopen(f"{endpoint}/api/datasets?limit=1", timeout=_TIMEOUT_SECONDS):
            return True
    except urllib.error.HTTPError:  # an answer, too
        return True
    except (OSError, ValueError):
        return False
