"""Resolves `path` of a source: files, patterns, folders, saved datasets, URLs, datasets of the hub.

Only regular files are inputs. Links to files are followed; a link to a folder, in a folder or below `**`, is an
error, because its files might be read twice, or endlessly. Paths are `str` here: there may be many, and a `Path` takes
longer to make and to join.
"""

import fnmatch
import glob
import os
import stat
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...schemas.errors import ConfigError, InputError
from ...schemas.files.foreign import kernel_devices
from ..store.open_store import is_url
from .blocks import FoundInput
from .fetch import find_urls
from .file_kinds import data_files, split_name
from .hub import choose_split, load_hub_dataset

if TYPE_CHECKING:
    from ...schemas.config.config import SourceConfig

_HUB = "hf://"
# Beginnings of URLs that name files of the hub, which fsspec finds; after `hf://` alone comes the name of a dataset.
_HUB_FILES = ("hf://datasets/", "hf://spaces/", "hf://buckets/", "hf://models/")
# Files of `datasets.Dataset.save_to_disk` and `DatasetDict.save_to_disk`.
_DATASET_FILE = "state.json"
_DATASET_DICT_FILE = "dataset_dict.json"
_ANY_DEPTH = "**"
"""What stands for any number of folders in a pattern."""


def find_inputs(source: "SourceConfig", base: Path, cache: Path) -> list[FoundInput]:
    """The inputs of a source, in the given order, and sorted within a pattern or a folder.

    Args:
        base: the folder at which relative paths begin.
        cache: the folder in which datasets of the hub are kept.

    Raises:
        ConfigError: a file is missing or listed twice, a pattern or a folder has no files, or `split` is missing or
            wrong.
        InputError: the store of a URL cannot be reached.
    """
    where = f"sources.{source.name}.path"
    inputs: dict[Hashable, FoundInput] = {}  # by their identity; see `_find`
    for text in source.path:
        for identity, entry in _find(text, source, where, base, cache):
            if identity in inputs:
                raise ConfigError(
                    f"{where}: {entry.origin or entry.name} is listed twice, by this or another name or pattern; its "
                    "rows would count twice"
                )
            inputs[identity] = entry
    return list(inputs.values())


def _find(
    text: str, source: "SourceConfig", where: str, base: Path, cache: Path
) -> Iterator[tuple[Hashable, FoundInput]]:
    """(Identity, input) of each input that one text of `path` names. The identity of a remote file is its URL; that of
    a local file, its device and inode.
    """
    if is_url(text):
        for entry in _find_remote(text, source, where, cache):
            yield entry.name, entry
        return
    for path in _find_local(text, source, where, base):
        status = require_regular(path, where)
        # Device and inode, because one file may have several names.
        yield (status.st_dev, status.st_ino), FoundInput(name=path, size=status.st_size, stamp=status.st_ctime_ns)


def _find_remote(text: str, source: "SourceConfig", where: str, cache: Path) -> list[FoundInput]:
    """The inputs that a URL names: a dataset of the hub (`hf://owner/name`), or files of a store or of the web."""
    if text.startswith(_HUB) and not text.startswith(_HUB_FILES):
        name = text.removeprefix(_HUB)
        if not name.strip("/") or name.startswith((".", "/")):
            raise ConfigError(f"{where}: {text} names no dataset of the hub; write hf://owner/name, or a folder's path")
        return load_hub_dataset(name, source.subset, source.split, cache, where)
    _refuse_split(source, text)
    return find_urls(text, where)


def _find_local(text: str, source: "SourceConfig", where: str, base: Path) -> list[str]:
    """The paths of the files that a path, a folder or a pattern names. A single path need not exist: `require_regular`
    says later what is wrong with it.
    """
    path = str(base / text)
    is_folder = os.path.isdir(path)  # false for a name that is too long, where Path.is_dir fails
    if is_folder and (Path(path) / _DATASET_DICT_FILE).is_file():
        splits = sorted(state.parent.name for state in Path(path).glob(f"*/{_DATASET_FILE}"))
        return _saved_files(Path(path) / choose_split(splits, configured=source.split, where=where, dataset=path))
    _refuse_split(source, text)
    if is_folder and (Path(path) / _DATASET_FILE).is_file():
        return _saved_files(Path(path))
    if is_folder:
        return _folder_files(path, where)
    # A file may be called `a[1].jsonl`: a name that exists is no pattern.
    if os.path.lexists(path) or not glob.has_magic(text):
        return [path]
    return _pattern_files(path, where)


def _folder_files(folder: str, where: str) -> list[str]:
    """The data files of a folder and of those below it, in order.

    Raises:
        ConfigError: there are none, or a folder is a link.
    """
    paths = []
    for inner_folder in _folders(folder, where, hidden=(".", "_")):
        paths += [path for _, path, is_folder in _entries(inner_folder) if not is_folder]
    # By names of folders, so that `a/b.jsonl` comes before `a-b.jsonl`.
    files = data_files(folder, sorted(paths, key=lambda path: path.split("/")))
    if not files:
        raise ConfigError(
            f"{where}: {folder} is a folder without data files (.jsonl, .json, .csv, .txt, also .gz or .zst; "
            ".parquet, .arrow); name the files, or a pattern"
        )
    return files


def _pattern_files(path: str, where: str) -> list[str]:
    """The files that match a pattern, in order.

    Raises:
        ConfigError: there are none.
    """
    # Folders that match a pattern are not entered; the pattern itself says how deep it goes. Of `data/2*/**`, the
    # folder is `data`, and the pattern `2*`, `**`, `*`.
    names = path.split("/")
    first = next(index for index, name in enumerate(names) if glob.has_magic(name))  # the place of `2*` in `names`
    folder = "/".join(names[:first])  # "" is the folder that the process is in
    if not folder and path.startswith("/"):  # `/2*`
        folder = "/"
    pattern = names[first:]
    if pattern[-1] == _ANY_DEPTH:
        pattern.append("*")
    files = []
    if os.path.isdir(folder or "."):
        # A set, because `**/**` reaches a file in several ways.
        files = sorted(set(_matches(folder, pattern, where)))
    if not files:
        raise ConfigError(f"{where}: no files match {path}; check the pattern, or the folder you are in")
    return files


def _saved_files(folder: Path) -> list[str]:
    """The Arrow files of a folder that `datasets.Dataset.save_to_disk` wrote: their names say how many there are."""
    files = sorted(map(str, folder.glob("data-*-of-*.arrow")))
    # The last of three is `data-00002-of-00003.arrow`.
    if not files or files[-1].removesuffix(".arrow").rpartition("-")[2] != f"{len(files):05}":
        raise InputError(
            f"{folder} has a {_DATASET_FILE}, but not all files data-00000-of-N.arrow of a saved dataset; copy or save "
            "it again. Of a packed dataset, give the sources that it was made from"
        )
    return files


def _refuse_split(source: "SourceConfig", text: str) -> None:
    """Raise ConfigError if the source has a `split` or a `subset`, which only datasets have."""
    for key, value in (("split", source.split), ("subset", source.subset)):
        if value is not None:
            raise ConfigError(
                f"sources.{source.name}.{key}: {text} names files, and files have no {key}; leave it out, and "
                f"name the files of {value!r} alone"
            )


def unique_labels(paths: Sequence[str]) -> list[str]:
    """A label for each path: its last names, as few as make all labels unique. `/data/a/x.jsonl` and `/data/b/x.jsonl`
    are `a/x` and `b/x`. Suffixes stay only if two paths differ in nothing else.
    """
    split_paths = [path.split("/") for path in paths]
    without_suffixes = [[*names[:-1], split_name(names[-1])[0]] for names in split_paths]
    if len({tuple(names) for names in without_suffixes}) == len(paths):
        split_paths = without_suffixes
    depth = 1
    while len({tuple(names[-depth:]) for names in split_paths}) < len(split_paths):
        depth += 1
    return ["/".join(names[-depth:]) for names in split_paths]


# Local files


def require_regular(path: str | Path, where: str) -> os.stat_result:
    """The status of a file, following links.

    Args:
        where: the key of the configuration, for messages.

    Raises:
        ConfigError: it is missing or not a regular file, or its name is not UTF-8.
    """
    name = os.fspath(path)
    try:
        name.encode()
        status = os.stat(name)
    except UnicodeEncodeError:
        raise ConfigError(f"{where}: the name of {name!r} is not UTF-8, which ids need; rename it") from None
    except (OSError, ValueError) as error:
        if os.path.islink(name):  # Path.is_symlink fails for a name that is too long
            problem = f"{name} is a link to {Path(name).readlink()}, which cannot be followed; remove or fix it"
        elif isinstance(error, FileNotFoundError | NotADirectoryError | ValueError):  # ValueError: a NUL in the name
            problem = f"there is no file {name}; check the spelling, or the folder you are in"
        else:
            problem = f"{name} cannot be read: {error.strerror}; fix that, or name another"
        raise ConfigError(f"{where}: {problem}") from None
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(
            f"{where}: {name} is a folder, a pipe or a device, and inputs are regular files; write its rows to a file, "
            "and name that"
        )
    if status.st_dev in kernel_devices():
        raise ConfigError(f"{where}: {name} is made by the kernel while it is read; give a file with data")
    return status


def _matches(folder: str, pattern: Sequence[str], where: str) -> Iterator[str]:
    """The files in a folder that match a pattern.

    Args:
        pattern: a pattern for each level, of which the first is for the names in `folder`: `*`, `?` and `[]` stand for
            characters of a name, `**` for any number of folders. A name that begins with a dot only matches a pattern
            that begins with one.
    """
    level_pattern = pattern[0]
    inner_pattern = pattern[1:]
    if level_pattern == _ANY_DEPTH:
        for inner_folder in _folders(folder, where):
            yield from _matches(inner_folder, inner_pattern, where)
        return
    for name, path, is_folder in _entries(folder):
        is_hidden = name.startswith(".") and not level_pattern.startswith(".")
        if is_hidden or not fnmatch.fnmatchcase(name, level_pattern):
            continue
        if is_folder and inner_pattern:
            yield from _matches(path, inner_pattern, where)
        elif not is_folder and not inner_pattern:
            yield path


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
    """(name, path, whether it is a folder) of what is in a folder, sorted by name. `folder` "" is the process's own."""
    try:
        names = sorted(os.listdir(folder or "."))
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {error.strerror}; fix that, or name its files") from error
    paths = [os.path.join(folder, name) for name in names]
    return [(name, path, os.path.isdir(path)) for name, path in zip(names, paths, strict=True)]
