"""Finds a user's own reader: `python:module:function` → the file and its source, without importing it."""

import sys
from pathlib import Path

from ...schemas.config.source import PYTHON
from ...schemas.errors import ConfigError
from ...stages.prep import Options, ReaderCode
from ...stages.prep.reader import reader_of


def is_reader(format: str) -> bool:
    """Whether a format names a user's own function."""
    return format.startswith(PYTHON)


def reader_options(format: str, base: Path, where: str, *, per_turn: bool) -> Options:
    """The options of a reader, including its module's source. Runs the module once as a check.

    Raises:
        ConfigError: it cannot be found, read or run, or has no such function.
    """
    _, module, function = format.split(":")
    relative = Path(*module.split("."))
    places = (folder / relative for folder in (base, *map(Path, sys.path)))
    files = (file for place in places for file in (place.with_suffix(".py"), place / "__init__.py"))
    file = next((file.absolute() for file in files if file.is_file()), None)
    if file is None:
        raise ConfigError(
            f"{where}: the module {module} is neither in {base} nor on Python's path; check its name, or put "
            f"{relative}.py beside the configuration"
        )
    try:
        code = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: {file} cannot be read: {error}; fix that, or name another reader") from None
    reader = ReaderCode(function=function, code=code, path=str(file), folder=str(base.absolute()))
    try:
        reader_of(reader)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error.__cause__
    return Options(per_turn=per_turn, reader=reader)
