"""Resolves `path` of a source: files, patterns, folders, saved datasets, URLs, datasets of the hub."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from stat import S_ISDIR
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from blake3 import blake3

from ....schemas.config.hints import did_you_mean
from ....schemas.errors import ConfigError, InputError
from ....schemas.jsontext import parse_json
from ..blocks import split_name
from .folders import MAGIC, data_files, matches, regular

if TYPE_CHECKING:
    from ....schemas.config.config import SourceConfig

HUB = "hf://"
_HUB_FILES = ("hf://datasets/", "hf://spaces/", "hf://buckets/", "hf://models/")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_STATE, _DICT = "state.json", "dataset_dict.json"
_PACKED = ("manifest.json", "documents.parquet")
"""Files that every dataset of packtrain has."""
_EXPORT = "export.json"
"""The note in every export of packtrain."""


class InputKind(Enum):
    """The kind of location of an input."""

    LOCAL = "local"
    URL = "url"
    HUB = "hub"
    """A dataset that the `datasets` library loads by name."""


@dataclass(frozen=True, slots=True)
class Found:
    """One input, not opened yet."""

    kind: InputKind
    name: str
    """A path, a URL, or the name of a dataset."""
    size: int
    """Bytes; 0 for a dataset of the hub."""
    stamp: int
    """Changes with the input: its modification time in nanoseconds, or a hash of a server's metadata. 0 if unknown."""

    @property
    def path(self) -> Path:
        """The path of a local file; for others, a path to make a label from."""
        if self.kind is InputKind.URL:
            parts = urlsplit(self.name)
            return Path(f"/{parts.hostname}{parts.path}")
        return Path(self.name)

    @property
    def shown(self) -> str:
        """The name for messages and notes: a URL without password and signature."""
        if self.kind is not InputKind.URL:
            return self.name
        parts = urlsplit(self.name)
        secret = f"?{blake3(parts.query.encode()).hexdigest(8)}" if parts.query else ""
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}{secret}"


def find_inputs(source: "SourceConfig", base: Path) -> list[Found]:
    """The inputs of a source, in the given order, and sorted within a pattern or a folder.

    Raises:
        ConfigError: a file is missing or listed twice, a pattern or a folder has no files, or `split` is missing or
            wrong.
        InputError: the store of a URL cannot be reached.
    """
    where = f"sources.{source.name}.path"
    found: list[Found] = []
    for text in source.path:
        if _URL.match(text):
            found += _far(text, source, where, base)
        else:
            found += _local(text, source, where, base)
    seen: set[object] = set()
    for one in found:
        key: object = one.name
        if one.kind is InputKind.LOCAL:
            stat = one.path.stat()
            key = (stat.st_dev, stat.st_ino)
        if key in seen:
            raise ConfigError(
                f"{where}: {one.name} is listed twice, by this or another name or pattern; its rows would count twice"
            )
        seen.add(key)
    return found


def _far(text: str, source: "SourceConfig", where: str, base: Path) -> Iterator[Found]:
    if text.startswith(HUB) and not text.startswith(_HUB_FILES):
        name = text.removeprefix(HUB)
        if not name.strip("/"):
            raise ConfigError(f"{where}: {text} names no dataset; write {HUB}owner/name")
        local = base / name if name.startswith((".", "/")) else None
        if local is not None and not local.is_dir():
            raise ConfigError(f"{where}: there is no folder {local}; check the spelling, or the folder you are in")
        yield Found(InputKind.HUB, str(local) if local is not None else name, 0, 0)
        return
    _refuse_split(source, text)
    from .remote import find_urls

    for url, size, stamp in find_urls(text, where):
        yield Found(InputKind.URL, url, size, stamp)


def _local(text: str, source: "SourceConfig", where: str, base: Path) -> Iterator[Found]:
    path = Path(text) if Path(text).is_absolute() else base / text
    try:
        str(path).encode()
        is_folder = S_ISDIR(path.stat().st_mode)
    except UnicodeEncodeError:
        is_folder = False
    except (FileNotFoundError, NotADirectoryError, ValueError):
        if path.is_symlink():
            is_folder = False
        elif not MAGIC & set(text):
            raise ConfigError(
                f"{where}: there is no file {path}; check the spelling, or the folder you are in"
            ) from None
        else:
            # Folders that match a pattern are not entered; the pattern itself says how deep it goes.
            _refuse_split(source, text)
            files = matches(path, where)
            if not files:
                raise ConfigError(
                    f"{where}: no files match {path}; check the pattern, or the folder you are in"
                ) from None
            yield from (_file(file, where) for file in files)
            return
    except OSError as error:
        raise ConfigError(f"{where}: {path} cannot be read: {error.strerror}; fix that, or name another") from None
    if not is_folder:
        _refuse_split(source, text)
        yield _file(path, where)
    elif any(
        all((folder / name).is_file() for name in _PACKED)
        for folder in (path, *([path.parent] if (path / _STATE).is_file() else []))
    ):
        raise ConfigError(
            f"{where}: {path} is a packed dataset; give the sources that it was made from. To pack its rows in another "
            "way, `packtrain export --to trl` writes files that format tokenized reads"
        )
    elif (path / _STATE).is_file() or (path / _DICT).is_file():
        yield from _saved(path, source, where)
    elif (path / _EXPORT).is_file():
        splits = sorted(one.name for one in path.iterdir() if one.is_dir() and not one.name.startswith("."))
        raise ConfigError(
            f"{where}: {path} is an export; give the folder of a split ({path / splits[0] if splits else path}), with "
            "format tokenized and, for packed rows, keys: {lengths: seq_lengths}"
        )
    else:
        _refuse_split(source, text)
        files = data_files(path, where)
        if not files:
            raise ConfigError(
                f"{where}: {path} is a folder without data files (.jsonl, .json, .csv, .parquet, .arrow, .txt, also "
                ".gz or .zst); name the files, or a pattern"
            )
        yield from (_file(file, where) for file in files)


def _file(path: Path, where: str) -> Found:
    found = regular(path, where)
    return Found(InputKind.LOCAL, str(path), found.st_size, found.st_mtime_ns)


def _saved(folder: Path, source: "SourceConfig", where: str) -> Iterator[Found]:
    """The Arrow files of a folder that `datasets.Dataset.save_to_disk` wrote."""
    if not (folder / _STATE).is_file():
        splits = _json(folder / _DICT).get("splits", [])
        split = choose_split(splits, source.split, where, str(folder))
        _within(folder, split, _DICT)
        folder = folder / split
    elif source.split is not None:
        state = _json(folder / _STATE).get("_split")
        if state != source.split:
            raise ConfigError(
                f"sources.{source.name}.split: {folder} has one dataset, the split {state!r}; leave `split` out"
            )
    state = _json(folder / _STATE)
    names = [one.get("filename") for one in state.get("_data_files") or [] if isinstance(one, dict)]
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise InputError(
            f"{folder} was saved with a separate index of rows by an old version of `datasets`; load it and save it "
            "again with a newer one"
        )
    if not names or not all(isinstance(name, str) for name in names):
        raise InputError(f"{folder / _STATE} names no data files; save the dataset again")
    for name in map(str, names):
        _within(folder, name, _STATE)
        path = folder / name
        if not path.exists():
            raise InputError(f"{folder} is incomplete: its {_STATE} names {name}, which is missing; copy it again")
        yield _file(path, where)


def _within(folder: Path, name: str, file: str) -> None:
    """Refuse a name that leads out of its folder."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise InputError(f"{folder / file} names {name!r}, which lies outside of its folder; save the dataset again")


def _json(path: Path) -> dict[str, Any]:
    try:
        data = parse_json(path.read_bytes())
        if isinstance(data, dict):
            return data
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}); copy the dataset again") from error
    raise InputError(f"{path} is not an object; copy the dataset again")


def choose_split(splits: list[str], wanted: str | None, where: str, what: str) -> str:
    """The split to use.

    Raises:
        ConfigError: it does not exist, or there are several and none is given.
    """
    key = f"{where.removesuffix('path')}split"
    if wanted is not None:
        if wanted not in splits:
            near = did_you_mean(wanted, splits)
            raise ConfigError(f"{key}: {what} has no split {wanted!r}; it has {', '.join(splits) or 'none'}{near}")
        return wanted
    if len(splits) != 1:
        raise ConfigError(f"{key}: {what} has the splits {', '.join(splits) or '(none)'}; say which one")
    return splits[0]


def _refuse_split(source: "SourceConfig", text: str) -> None:
    for key, value in (("split", source.split), ("subset", source.subset)):
        if value is not None:
            raise ConfigError(
                f"sources.{source.name}.{key}: {text} names files, and files have no {key}; leave it out, name the "
                f"files of {value!r} alone, or write {HUB}./folder to have the datasets library read a folder"
            )


def labels(paths: list[Path]) -> list[str]:
    """The shortest unique tails of the paths, without suffixes if they are unique without them."""
    stems = [[*path.parent.parts, split_name(path.name)[0]] for path in paths]
    parts = stems if len(set(map(tuple, stems))) == len(stems) else [list(path.parts) for path in paths]
    depth = 1
    while len({tuple(p[-depth:]) for p in parts}) < len(parts):
        depth += 1
    return ["/".join(p[-depth:]) for p in parts]
