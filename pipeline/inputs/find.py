"""Resolves `path` of a source: files, patterns, folders, saved datasets, URLs, datasets of the hub.

Only regular files are inputs. Links to files are followed; a link to a folder, in a folder or below `**`, is an
error, because its files might be read twice, or endlessly. Paths are texts here, because there may be many.
"""

import fnmatch
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...schemas.errors import ConfigError, InputError
from ...schemas.files.foreign import kernel_devices
from ..store.open_store import is_url
from .blocks import Found, choose_split
from .fetch import find_urls
from .file_kinds import data_files, split_name
from .hub import load

if TYPE_CHECKING:
    from ...schemas.config.config import SourceConfig

_HUB = "hf://"
_HUB_FILES = ("hf://datasets/", "hf://spaces/", "hf://buckets/", "hf://models/")
_STATE, _DICT = "state.json", "dataset_dict.json"
_MAGIC = frozenset("*?[")
"""Characters that make a name a pattern."""
_ANY_DEPTH = "**"


def find_inputs(source: "SourceConfig", base: Path, cache: Path) -> list[Found]:
    """The inputs of a source, in the given order, and sorted within a pattern or a folder.

    Args:
        cache: for datasets of the hub.

    Raises:
        ConfigError: a file is missing or listed twice, a pattern or a folder has no files, or `split` is missing or
            wrong.
        InputError: the store of a URL cannot be reached.
    """
    where = f"sources.{source.name}.path"
    found: dict[object, Found] = {}

    def add(key: object, one: Found) -> None:
        if key in found:
            raise ConfigError(
                f"{where}: {one.origin or one.name} is listed twice, by this or another name or pattern; its rows "
                "would count twice"
            )
        found[key] = one

    for text in source.path:
        if is_url(text):
            for one in _far(text, source, where, cache):
                add(one.name, one)
            continue
        for path in _local(text, source, where, base):
            about = regular(path, where)
            add((about.st_dev, about.st_ino), Found(path, about.st_size, about.st_ctime_ns))
    return list(found.values())


def _far(text: str, source: "SourceConfig", where: str, cache: Path) -> list[Found]:
    if text.startswith(_HUB) and not text.startswith(_HUB_FILES):
        name = text.removeprefix(_HUB)
        if not name.strip("/") or name.startswith((".", "/")):
            raise ConfigError(f"{where}: {text} names no dataset of the hub; write hf://owner/name, or a folder's path")
        return load(name, source.subset, source.split, cache, where)
    _refuse_split(source, text)
    return find_urls(text, where)


def _local(text: str, source: "SourceConfig", where: str, base: Path) -> list[str]:
    path = str(base / text)
    is_folder = os.path.isdir(path)  # false for a name that is too long, where Path.is_dir fails
    if is_folder and (Path(path) / _DICT).is_file():
        splits = sorted(one.parent.name for one in Path(path).glob(f"*/{_STATE}"))
        return _saved(Path(path) / choose_split(splits, source.split, where, path))
    _refuse_split(source, text)
    if is_folder:
        if (Path(path) / _STATE).is_file():
            return _saved(Path(path))
        inner = [one for each in _folders(path, where, (".", "_")) for one in _entries(each)]
        found = [name for _, name, is_folder in inner if not is_folder]
        files = data_files(path, sorted(found, key=lambda name: name.split("/")))
        if not files:
            raise ConfigError(
                f"{where}: {path} is a folder without data files (.jsonl, .json, .csv, .txt, also .gz or .zst; "
                ".parquet, .arrow); name the files, or a pattern"
            )
        return files
    if os.path.lexists(path) or not _MAGIC & set(text):
        return [path]
    # Folders that match a pattern are not entered; the pattern itself says how deep it goes.
    names = path.split("/")
    first = next(index for index, name in enumerate(names) if _MAGIC & set(name))
    top, names = "/".join(names[:first]) or ("/" if first else ""), names[first:]
    names += ["*"] if names[-1] == _ANY_DEPTH else []
    files = sorted(set(_matches(top, names, where))) if os.path.isdir(top or ".") else []
    if not files:
        raise ConfigError(f"{where}: no files match {path}; check the pattern, or the folder you are in")
    return files


def _saved(folder: Path) -> list[str]:
    """The Arrow files of a folder that `datasets.Dataset.save_to_disk` wrote: their names say how many there are."""
    files = sorted(map(str, folder.glob("data-*-of-*.arrow")))
    if not files or files[-1].removesuffix(".arrow").rpartition("-")[2] != f"{len(files):05}":
        raise InputError(
            f"{folder} has a {_STATE}, but not all files data-00000-of-N.arrow of a saved dataset; copy or save it "
            "again. Of a packed dataset, give the sources that it was made from"
        )
    return files


def _refuse_split(source: "SourceConfig", text: str) -> None:
    for key, value in (("split", source.split), ("subset", source.subset)):
        if value is not None:
            raise ConfigError(
                f"sources.{source.name}.{key}: {text} names files, and files have no {key}; leave it out, and "
                f"name the files of {value!r} alone"
            )


def labels(paths: Sequence[str]) -> list[str]:
    """The shortest unique tails of the paths, without suffixes if they are unique without them."""
    parts = [path.split("/") for path in paths]
    stems = [[*names[:-1], split_name(names[-1])[0]] for names in parts]
    parts = stems if len(set(map(tuple, stems))) == len(stems) else parts
    depth = 1
    while len({tuple(names[-depth:]) for names in parts}) < len(parts):
        depth += 1
    return ["/".join(names[-depth:]) for names in parts]


# Local files


def regular(path: str | Path, where: str) -> os.stat_result:
    """The status of a file, following links.

    Args:
        where: the key of the configuration, for messages.

    Raises:
        ConfigError: it is missing or not a regular file, or its name is not UTF-8.
    """
    name = os.fspath(path)
    try:
        name.encode()
        found = os.stat(name)
    except UnicodeEncodeError:
        raise ConfigError(f"{where}: the name of {name!r} is not UTF-8, which ids need; rename it") from None
    except (OSError, ValueError) as error:
        if os.path.islink(name):  # Path.is_symlink fails for a name that is too long
            why = f"{name} is a link to {Path(name).readlink()}, which cannot be followed; remove or fix it"
        elif isinstance(error, FileNotFoundError | NotADirectoryError | ValueError):
            why = f"there is no file {name}; check the spelling, or the folder you are in"
        else:
            why = f"{name} cannot be read: {error.strerror}; fix that, or name another"
        raise ConfigError(f"{where}: {why}") from None
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(
            f"{where}: {name} is a folder, a pipe or a device, and inputs are regular files; write its rows to a file, "
            "and name that"
        )
    if found.st_dev in kernel_devices():
        raise ConfigError(f"{where}: {name} is made by the kernel while it is read; give a file with data")
    return found


def _matches(folder: str, names: Sequence[str], where: str) -> Iterator[str]:
    """The files in a folder that match the names of a pattern: `*`, `?` and `[]` within a name, `**` for any folders.

    A name that begins with a dot only matches a pattern that does.
    """
    first, rest = names[0], names[1:]
    if first == _ANY_DEPTH:
        for inner in _folders(folder, where):
            yield from _matches(inner, rest, where)
        return
    for name, path, is_folder in _entries(folder):
        seen = first.startswith(".") or not name.startswith(".")
        if seen and fnmatch.fnmatchcase(name, first) and is_folder == bool(rest):
            yield from _matches(path, rest, where) if rest else [path]


def _folders(folder: str, where: str, hidden: tuple[str, ...] = (".",)) -> Iterator[str]:
    """A folder and those below it, but none whose name begins with one of `hidden`.

    Raises:
        ConfigError: one is a link.
        InputError: one cannot be read.
    """
    yield folder
    for name, path, is_folder in _entries(folder):
        if is_folder and not name.startswith(hidden):
            if os.path.islink(path):
                raise ConfigError(f"{where}: {path} is a link to a folder; name the folder itself, and the others")
            yield from _folders(path, where, hidden)


def _entries(folder: str) -> list[tuple[str, str, bool]]:
    """(name, path, whether it is a folder) of what is in a folder, sorted by name."""
    try:
        names = sorted(os.listdir(folder or "."))
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {error.strerror}; fix that, or name its files") from error
    return [(name, path, os.path.isdir(path)) for name in names if (path := os.path.join(folder, name))]
