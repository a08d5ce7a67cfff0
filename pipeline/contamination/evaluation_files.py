"""Finds evaluation files, which are given as a source's inputs are. Imports nothing heavy."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...schemas.config.config import SourceConfig
from ...schemas.config.decontaminate import DecontaminateConfig
from ...schemas.errors import ConfigError, InputError
from ..inputs.find import Found, find_inputs

MAX_ROW_BYTES = 64 << 20
"""Longer lines are refused. Rows of programming problems hold megabytes of tests."""
_NAME = "evaluation"


def find_evaluation(config: DecontaminateConfig, base: Path) -> list[Found]:
    """The evaluation files, without reading them.

    Raises:
        ConfigError: one is missing.
    """
    with called("decontaminate.against"):
        return find_inputs(source_of(config), base)


def source_of(config: DecontaminateConfig) -> SourceConfig:
    """The evaluation files as a source; its format is not used."""
    return SourceConfig(name=_NAME, path=config.against, max_row_bytes=MAX_ROW_BYTES)


@contextmanager
def called(name: str) -> Iterator[None]:
    """Make errors say what the user calls the list of files."""
    try:
        yield
    except (ConfigError, InputError) as error:
        raise type(error)(str(error).replace(f"sources.{_NAME}.path", name)) from None
