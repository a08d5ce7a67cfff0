"""Resolves `path` of a source: files, patterns, folders, saved datasets, URLs, datasets of the hub.

Only regular files are inputs. Links are followed, and every folder is entered once: a link to a folder that was already
entered is an error, because its files would be read twice, or endlessly.
"""

import fnmatch
import os
import re
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from blake3 import blake3

from ...schemas.errors import ConfigError, InputError, did_you_mean
from ...schemas.jsontext import parse_json
from .blocks import split_name
from .file_kinds import is_data, is_text

if TYPE_CHECKING:
    from ...schemas.config.config import SourceConfig

HUB = "hf://"
_HUB_FILES = ("hf://datasets/", "hf://spaces/", "hf://buckets/", "hf://models/")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_STATE, _DICT = "state.json", "dataset_dict.json"
_MAGIC = frozenset("*?[")
"""Characters that make a name a pattern."""
_PACKED = ("manifest.json", "documents.parquet")
"""Files that every dataset of packtrain has."""


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
    """Changes with the input: its change time (ctime, in ns), or a hash of a server's metadata; 0 if unknown."""
    alias: str = ""
    """The path that its label is made from, if it is another one."""
    origin: str = ""
    """What the user knows a copy as: the URL, or the name of the dataset of the hub."""

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
        found += _far(text, source, where, base) if _URL.match(text) else _local(text, source, where, base)
    seen: set[object] = set()
    for one in found:
        key: object = one.name
        if one.kind is InputKind.LOCAL:
            about = os.stat(one.name)  # noqa: PTH116 - there may be many
            key = (about.st_dev, about.st_ino)
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
        if name.startswith((".", "/")):
            name = str(base / name)
            if not Path(name).is_dir():
                raise ConfigError(f"{where}: there is no folder {name}; check the spelling, or the folder you are in")
        yield Found(InputKind.HUB, name, 0, 0)
        return
    _refuse_split(source, text)
    from .fetch import find_urls

    for url, size, stamp in find_urls(text, where):
        one = Found(InputKind.URL, url, size, stamp)
        yield replace(one, origin=one.shown)


def _local(text: str, source: "SourceConfig", where: str, base: Path) -> list[Found]:
    path = base / text
    if not os.path.lexists(path) and _MAGIC & set(text):
        # Folders that match a pattern are not entered; the pattern itself says how deep it goes.
        files, empty = _matches(path, where), f"no files match {path}; check the pattern, or the folder you are in"
    elif not os.path.isdir(path):  # noqa: PTH112 - false for a name that is too long, where Path.is_dir fails
        files, empty = [path], ""
    else:
        _refuse_own(path, where)
        if (path / _STATE).is_file() or (path / _DICT).is_file():
            return [_file(file, where) for file in _saved(path, source, where)]
        files = _data_files(path, where)
        empty = (
            f"{path} is a folder without data files (.jsonl, .json, .csv, .parquet, .arrow, .txt, also .gz or .zst); "
            "name the files, or a pattern"
        )
    _refuse_split(source, text)
    if not files:
        raise ConfigError(f"{where}: {empty}")
    return [_file(file, where) for file in files]


def _refuse_own(path: Path, where: str) -> None:
    """Refuse packed datasets, whose files are not what they seem."""
    for folder in (path, path.parent):
        if all((folder / name).is_file() for name in _PACKED) and (folder == path or (path / _STATE).is_file()):
            raise ConfigError(
                f"{where}: {path} is a packed dataset; give the sources that it was made from. To pack its rows in "
                "another way, `packtrain export --to trl` writes files that format tokenized reads"
            )


def _file(path: Path, where: str) -> Found:
    found = regular(path, where)
    return Found(InputKind.LOCAL, str(path), found.st_size, found.st_ctime_ns)


def _saved(folder: Path, source: "SourceConfig", where: str) -> Iterator[Path]:
    """The Arrow files of a folder that `datasets.Dataset.save_to_disk` wrote."""
    if not (folder / _STATE).is_file():
        splits = _json(folder / _DICT).get("splits", [])
        split = choose_split(splits, source.split, where, str(folder))
        folder = _within(folder, split, _DICT)
        state = _json(folder / _STATE)
    else:
        state = _json(folder / _STATE)
        if source.split not in (None, state.get("_split")):
            raise ConfigError(
                f"sources.{source.name}.split: {folder} has one dataset, the split {state.get('_split')!r}; leave "
                "`split` out"
            )
    names = [one.get("filename") for one in state.get("_data_files") or [] if isinstance(one, dict)]
    if not names:
        raise InputError(f"{folder / _STATE} names no data files; save the dataset again")
    for name in names:
        path = _within(folder, name, _STATE)
        if not path.exists():
            raise InputError(f"{folder} is incomplete: its {_STATE} names {name}, which is missing; copy it again")
        yield path


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


# Local files


def regular(path: Path, where: str) -> os.stat_result:
    """The status of a file, following links.

    Args:
        where: the key of the configuration, for messages.

    Raises:
        ConfigError: it is missing or not a regular file, or its name is not UTF-8.
    """
    try:
        str(path).encode()
        found = path.stat()
    except UnicodeEncodeError:
        raise ConfigError(f"{where}: the name of {str(path)!r} is not UTF-8, which ids need; rename it") from None
    except (OSError, ValueError) as error:
        if path.is_symlink():
            why = f"{path} is a link to {path.readlink()}, which cannot be followed; remove or fix it"
        elif isinstance(error, FileNotFoundError | NotADirectoryError | ValueError):
            why = f"there is no file {path}; check the spelling, or the folder you are in"
        else:
            why = f"{path} cannot be read: {error.strerror}; fix that, or name another"
        raise ConfigError(f"{where}: {why}") from None
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"{where}: {irregular(path)}")
    if found.st_dev in _of_the_kernel():
        raise ConfigError(f"{where}: {path} is made by the kernel while it is read; give a file with data")
    return found


@cache
def _of_the_kernel() -> set[int]:
    """The devices whose files are made while they are read."""
    return {place.stat().st_dev for place in (Path("/proc"), Path("/sys")) if place.is_dir()}


def irregular(path: Path) -> str:
    """What to do if a path is not a regular file."""
    return (
        f"{path} is a folder, a pipe or a device, and inputs are regular files; write its rows to a file, and name that"
    )


def _data_files(folder: Path, where: str) -> list[Path]:
    """The data files below a folder, sorted; if there are none, its .txt files.

    Names that begin with a dot or an underscore are skipped.

    Raises:
        ConfigError: a link leads to a folder that was already entered.
        InputError: a folder cannot be read.
    """
    inner = _folders(folder, where, hidden=(".", "_"))
    found = [above / name for above, names in inner for name in names if not name.startswith((".", "_"))]
    return sorted([one for one in found if is_data(one.name)] or [one for one in found if is_text(one.name)])


def _matches(pattern: Path, where: str) -> list[Path]:
    """The files that match a pattern, sorted as texts: `*`, `?` and `[]` within a name, `**` for any folders.

    A name that begins with a dot only matches a pattern that does.

    Raises:
        ConfigError: a link leads to a folder that was already entered.
        InputError: a folder cannot be read.
    """
    first = next(index for index, part in enumerate(pattern.parts) if _MAGIC & set(part))
    base, parts = Path(*pattern.parts[:first]), pattern.parts[first:]
    deepest = len(parts) if "**" not in parts else sys.maxsize
    found = list[Path]()
    for above, names in _folders(base, where, hidden=(), deepest=deepest) if os.path.isdir(base) else ():  # noqa: PTH112
        way = above.relative_to(base).parts
        found += [above / name for name in names if _fits((*way, name), parts)]
    return sorted(found, key=str)


def _fits(names: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    """Whether the names on the way to a file match the parts of a pattern."""
    if not names or not parts:
        return not names and not parts
    if parts[0] == "**":
        deeper = not names[0].startswith(".") and len(names) > 1 and _fits(names[1:], parts)
        return deeper or _fits(names, parts[1:] or ("*",))
    seen = parts[0].startswith(".") or not names[0].startswith(".")
    return seen and fnmatch.fnmatchcase(names[0], parts[0]) and _fits(names[1:], parts[1:])


def _folders(
    top: Path, where: str, hidden: tuple[str, ...], deepest: int = sys.maxsize
) -> Iterator[tuple[Path, list[str]]]:
    """A folder and those below it, each with the names of its files.

    Args:
        hidden: folders whose names begin with one of these are not entered.
        deepest: how many folders deep to go.
    """

    def refuse(error: OSError) -> None:
        raise InputError(f"{error.filename} cannot be read: {error.strerror}; fix that, or name its files") from error

    entered: dict[tuple[int, int], str] = {}
    for folder, inner, names in os.walk(top, followlinks=True, onerror=refuse):
        about = Path(folder).stat()
        first = entered.setdefault((about.st_dev, about.st_ino), folder)
        if first != folder:
            raise ConfigError(
                f"{where}: {folder} leads to {first}, which is already read: a link to it is below {top}; remove the "
                "link, or name the files"
            )
        deep = len(Path(folder).relative_to(top).parts) + 1
        inner[:] = sorted(name for name in inner if deep < deepest and not name.startswith(hidden))
        yield Path(folder), sorted(names)
