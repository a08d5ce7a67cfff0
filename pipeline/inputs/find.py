"""Resolves `path` of a source: files, patterns, folders, saved datasets, URLs, datasets of the hub.

Only regular files are inputs. Links are followed, and every folder is entered once: a link to a folder that was already
entered is an error, because its files would be read twice, or endlessly. Paths are texts here, because there may be
many.
"""

import fnmatch
import os
import stat
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...schemas.errors import ConfigError, InputError
from ...schemas.jsontext import parse_json
from .blocks import split_name
from .file_kinds import is_data, is_text
from .found import URL, Found, choose_split

if TYPE_CHECKING:
    from ...schemas.config.config import SourceConfig

HUB = "hf://"
_HUB_FILES = ("hf://datasets/", "hf://spaces/", "hf://buckets/", "hf://models/")
_STATE, _DICT = "state.json", "dataset_dict.json"
_MAGIC = frozenset("*?[")
"""Characters that make a name a pattern."""
_ANY_DEPTH = "**"
_PACKED = ("manifest.json", "documents.parquet")
"""Files that every dataset of packtrain has."""


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
        if URL.match(text):
            for one in _far(text, source, where, cache):
                add(one.name, one)
            continue
        for path in _local(text, source, where, base):
            about = regular(path, where)
            add((about.st_dev, about.st_ino), Found(path, about.st_size, about.st_ctime_ns))
    return list(found.values())


def _far(text: str, source: "SourceConfig", where: str, cache: Path) -> list[Found]:
    if text.startswith(HUB) and not text.startswith(_HUB_FILES):
        from .hub import load

        name = text.removeprefix(HUB)
        if not name.strip("/") or name.startswith((".", "/")):
            raise ConfigError(f"{where}: {text} names no dataset of the hub; write {HUB}owner/name, or a folder's path")
        return load(name, source.subset, source.split, cache, where)
    _refuse_split(source, text)
    from .fetch import find_urls

    return find_urls(text, where)


def _local(text: str, source: "SourceConfig", where: str, base: Path) -> list[str]:
    path = str(base / text)
    is_folder = os.path.isdir(path)  # false for a name that is too long, where Path.is_dir fails
    if is_folder:
        _refuse_own(path, where)
    if is_folder and os.path.isfile(os.path.join(path, _DICT)):
        splits = _json(Path(path) / _DICT).get("splits", [])
        return _saved(_within(Path(path), choose_split(splits, source.split, where, path), _DICT))
    _refuse_split(source, text)
    if is_folder:
        files = _saved(Path(path)) if _is_saved(path) else _data_files(path, where)
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


def _refuse_own(path: str, where: str) -> None:
    """Refuse packed datasets, whose files are not what they seem."""
    for folder in (Path(path), Path(path).parent):
        if all((folder / name).is_file() for name in _PACKED) and (folder == Path(path) or _is_saved(path)):
            raise ConfigError(
                f"{where}: {path} is a packed dataset; give the sources that it was made from. To pack its rows in "
                "another way, `packtrain export --to trl` writes files that format tokenized reads"
            )


def _is_saved(folder: str) -> bool:
    """Whether `datasets.Dataset.save_to_disk` wrote a folder."""
    return (Path(folder) / _STATE).is_file()


def _saved(folder: Path) -> list[str]:
    """The Arrow files of a folder that `datasets.Dataset.save_to_disk` wrote."""
    found = _json(folder / _STATE).get("_data_files") or []
    paths = [_within(folder, one.get("filename"), _STATE) for one in found if isinstance(one, dict)]
    if not paths:
        raise InputError(f"{folder / _STATE} names no data files; save the dataset again")
    for path in paths:
        if not path.exists():
            raise InputError(f"{folder} is incomplete: its {_STATE} names {path.name}, which is missing; copy it again")
    return [str(path) for path in paths]


def _within(folder: Path, name: object, file: str) -> Path:
    """A path in a folder. Refuses a name that leads out of it."""
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\0" in name:
        raise InputError(f"{folder / file} names {name!r}, which lies outside of its folder; save the dataset again")
    return folder / name


def _json(path: Path) -> dict[str, Any]:
    try:
        data = parse_json(path.read_bytes())
        if isinstance(data, dict):
            return data
        raise ValueError("it is not an object")
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}); copy the dataset again") from error


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
        if Path(name).is_symlink():
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
    if found.st_dev in _of_the_kernel():
        raise ConfigError(f"{where}: {name} is made by the kernel while it is read; give a file with data")
    return found


@cache
def _of_the_kernel() -> set[int]:
    """The devices whose files are made while they are read."""
    return {place.stat().st_dev for place in (Path("/proc"), Path("/sys")) if place.is_dir()}


def _data_files(folder: str, where: str) -> list[str]:
    """The data files below a folder, sorted; if there are none, its .txt files.

    Names that begin with a dot or an underscore are skipped.

    Raises:
        ConfigError: a link leads to a folder that was already entered.
        InputError: a folder cannot be read.
    """
    hidden = (".", "_")
    inner = [one for each in _folders(folder, where, {}, hidden) for one in _entries(each)]
    found = [path for name, path, is_folder in inner if not is_folder and not name.startswith(hidden)]
    return sorted(list(filter(is_data, found)) or filter(is_text, found), key=lambda path: path.split("/"))


def _matches(folder: str, names: Sequence[str], where: str) -> Iterator[str]:
    """The files in a folder that match the names of a pattern: `*`, `?` and `[]` within a name, `**` for any folders.

    A name that begins with a dot only matches a pattern that does.

    Raises:
        ConfigError: a link leads to a folder that was already entered.
        InputError: a folder cannot be read.
    """
    first, rest = names[0], names[1:]
    if first == _ANY_DEPTH:
        for inner in _folders(folder, where, {}, (".",)):
            yield from _matches(inner, rest, where)
        return
    for name, path, is_folder in _entries(folder):
        seen = first.startswith(".") or not name.startswith(".")
        if seen and fnmatch.fnmatchcase(name, first) and is_folder == bool(rest):
            yield from _matches(path, rest, where) if rest else [path]


def _folders(folder: str, where: str, entered: dict[tuple[int, int], str], hidden: tuple[str, ...]) -> Iterator[str]:
    """A folder and those below it.

    Args:
        entered: those of before, by device and inode.
        hidden: folders whose names begin with one of these are not entered.
    """
    about = os.stat(folder or ".")
    first = entered.setdefault((about.st_dev, about.st_ino), folder)
    if first != folder:
        raise ConfigError(
            f"{where}: {folder} leads to {first}, which is already read: one of them is a link; remove it, or name the "
            "files"
        )
    yield folder
    for name, path, is_folder in _entries(folder):
        if is_folder and not name.startswith(hidden):
            yield from _folders(path, where, entered, hidden)


def _entries(folder: str) -> list[tuple[str, str, bool]]:
    """(name, path, whether it is a folder) of what is in a folder, sorted by name."""
    try:
        names = sorted(os.listdir(folder or "."))
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {error.strerror}; fix that, or name its files") from error
    return [(name, path, os.path.isdir(path)) for name in names if (path := os.path.join(folder, name))]
