"""The conditions (`where`) of sources, tried on their first rows before anything is encoded."""

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

from ..schemas.config import SourceConfig
from ..stages.prep import make_format
from ..stages.where import Where
from .formats import SourceFormat
from .sources import InputFile, sample_rows

SAMPLE_ROWS = 100


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
        where.check(form.prepare_rows(enumerate(sample_rows(first, SAMPLE_ROWS, source.max_row_bytes))).examples)


def polars_version() -> str:
    """The version of polars that reads conditions here, for the keys of parts; empty where there is none."""
    try:
        return version("polars")
    except PackageNotFoundError:
        return ""
