"""Local files: below a folder, by a pattern, or by name. Only regular files are inputs.

Links are followed, and every folder is entered once: a link to a folder that was already entered is an error, because
its files would be read twice, or endlessly.
"""

import os
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from ....schemas.errors import ConfigError, InputError
from ..containers.detect import is_data, is_mds, is_text

MAGIC = frozenset("*?[")
"""Characters that make a name a pattern."""

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}


def regular(path: Path, where: str) -> os.stat_result:
    """The status of a file, following links.

    Args:
        where: the key of the configuration, for messages.

    Raises:
        ConfigError: it is missing or not a regular file, or its name is not UTF-8.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{where}: the name of {str(path)!r} is not UTF-8, which ids need; rename it") from None
    try:
        found = path.stat()
    except OSError as error:
        raise ConfigError(f"{where}: {_broken(path, error)}") from None
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"{where}: {irregular(path, found)}")
    return found


def irregular(path: Path, found: os.stat_result) -> str:
    """What a path is if it is not a regular file, and what to do."""
    kind = _KINDS.get(stat.S_IFMT(found.st_mode), "not a regular file")
    return f"{path} is {kind}, and inputs are regular files; write its rows to a file, and name that"


def data_files(folder: Path, where: str) -> list[Path]:
    """The data files below a folder, sorted; if there are none, its .txt files.

    Names that begin with a dot or an underscore are skipped.

    Raises:
        ConfigError: a link leads to a folder that was already entered; the folder holds MDS shards.
        InputError: a folder cannot be read.
    """
    found = [
        Path(entry.path)
        for inner in _folders(folder, where, hidden=(".", "_"))
        for entry in _entries(inner)
        if not entry.name.startswith((".", "_")) and not _is_folder(entry)
    ]
    if any(is_mds(one.name) for one in found):  # its index.json looks like data
        raise ConfigError(f"{where}: {folder} holds MDS shards; docs/exchange.md shows how to convert them to Parquet")
    return sorted([one for one in found if is_data(one.name)] or [one for one in found if is_text(one.name)])


def matches(pattern: Path, where: str) -> list[Path]:
    """The files that match a pattern, sorted as texts: `*`, `?` and `[]` within a name, `**` for any folders.

    A name that begins with a dot only matches a pattern that does.

    Raises:
        ConfigError: a link leads to a folder that `**` has already entered.
        InputError: a folder cannot be read.
    """
    first = next(index for index, part in enumerate(pattern.parts) if MAGIC & set(part))
    base = Path(*pattern.parts[:first])
    names = {str(path) for path in _expand(base, pattern.parts[first:], where) if not path.is_dir()}
    return [Path(name) for name in sorted(names)]


def _expand(folder: Path, parts: tuple[str, ...], where: str) -> Iterator[Path]:
    if not parts:
        yield folder
        return
    part, rest = parts[0], parts[1:]
    if part == "**":
        for inner in _folders(folder, where, hidden=(".",)) if folder.is_dir() else ():
            yield from _expand(inner, rest or ("*",), where)
    elif not MAGIC & set(part):
        if os.path.lexists(folder / part):
            yield from _expand(folder / part, rest, where)
    elif folder.is_dir():
        for entry in _entries(folder):
            if fnmatchcase(entry.name, part) and (part.startswith(".") or not entry.name.startswith(".")):
                yield from _expand(Path(entry.path), rest, where)


def _folders(top: Path, where: str, hidden: tuple[str, ...]) -> Iterator[Path]:
    """A folder and all below it."""
    entered: dict[tuple[int, int], Path] = {}
    waiting = [top]
    while waiting:
        folder = waiting.pop()
        about = folder.stat()
        first = entered.setdefault((about.st_dev, about.st_ino), folder)
        if first is not folder:
            raise ConfigError(
                f"{where}: {folder} leads to {first}, which is already read: a link to it is below {top}; remove the "
                "link, or name the files"
            )
        yield folder
        waiting += [Path(one.path) for one in _entries(folder) if _is_folder(one) and not one.name.startswith(hidden)]


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name, reverse=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {error.strerror}; fix that, or name its files") from error


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that cannot be followed
        return False


def _broken(path: Path, error: OSError) -> str:
    if path.is_symlink():
        return f"{path} is a link to {path.readlink()}, which cannot be followed ({error.strerror}); remove or fix it"
    return f"{path} cannot be read: {error.strerror}; fix that, or name another"
