"""Checks of the inputs' first rows before encoding: conditions, preference pairs."""

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError

from ...schemas.config.config import RunConfig, SourceConfig
from ...schemas.errors import ConfigError
from ...schemas.fingerprint import version
from ...stages.prep import make_format
from ...stages.select.where import Where
from .blocks import InputFile
from .read import sample_rows
from .source_formats import SAMPLE_ROWS, SourceFormat

_CONDITION_ROWS = 100
_PREFERENCE = "preference"


def check_conditions(
    sources: Sequence[SourceConfig], files: Sequence[InputFile], formats: Mapping[str, SourceFormat]
) -> None:
    """Try every source's condition on the first rows of its first file.

    Raises:
        ConfigError: a condition is wrong, or polars is missing.
    """
    for source in sources:
        if source.where is None:
            continue
        where = Where(source.where, f"sources.{source.name}.where")
        form = make_format(formats[source.name].name, formats[source.name].options)
        first = next(file for file in files if file.source == source.name)
        where.check(form.prepare_rows(enumerate(sample_rows(first, _CONDITION_ROWS, source.max_row_bytes))).examples)


def polars_version() -> str:
    """The installed version of polars, for the keys of parts; empty if it is not installed."""
    try:
        return version("polars")
    except PackageNotFoundError:
        return ""


def is_preference(config: RunConfig, formats: Mapping[str, SourceFormat], files: Sequence[InputFile]) -> bool:
    """Whether all sources are preference data. For a user's own reader, its first example decides.

    Raises:
        ConfigError: only some sources are, or pairs would be split.
    """
    kinds = {
        name: _gives_pairs(form, next(file for file in files if file.source == name)) for name, form in formats.items()
    }
    pairs = [name for name, kind in kinds.items() if kind]
    if not pairs:
        return False
    others = [name for name, kind in kinds.items() if kind is False]
    if others:
        raise ConfigError(
            f"sources.{others[0]} is not preference data, but sources.{pairs[0]} is: pairs are not packed, and are "
            "written in other columns. Use two runs"
        )
    if config.truncate.overlong == "split":
        raise ConfigError("truncate.overlong: a preference pair cannot be split; choose truncate, drop or error")
    return True


def _gives_pairs(form: SourceFormat, file: InputFile) -> bool | None:
    """Whether a source gives pairs; None if no row shows it."""
    if form.name != "python":
        return form.name == _PREFERENCE
    reader = make_format(form.name, form.options)
    for number, row in enumerate(sample_rows(file, SAMPLE_ROWS)):
        for example in reader.prepare_rows([(number, row)]).examples:
            return example.rejected is not None
    return None
