"""Checks of the inputs' first rows before encoding: conditions, preference pairs."""

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError

from ...schemas.config.config import LossConfig, MaskConfig, PackConfig, RunConfig, SourceConfig
from ...schemas.errors import ConfigError, InputError
from ...schemas.fingerprint import version
from ...stages.prep import make_format
from ...stages.select.where import Where
from .blocks import InputFile
from .detect import LOOKED_AT, misfit
from .read import read_rows, sample_rows
from .source_format import SourceFormat

SAMPLE_ROWS = 200
"""How many first rows of a source's first file to check."""
_CONDITION_ROWS = 100
_PREFERENCE = "preference"
_NO_ROW = ("invalid_json", "invalid_utf8", "not_an_object")
"""Reject reasons that suggest that the whole file is of another kind."""
_COLUMNS = 12
"""Maximum number of columns to name."""


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
        ConfigError: only some sources are, or the configuration has options that only apply to packed rows.
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
    _check(config)
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


def _check(config: RunConfig) -> None:
    """Raise ConfigError for options that do not apply and would be ignored silently."""
    why = "preference pairs are not packed, each is a row of its own"
    unused: dict[str, tuple[object, object, str]] = {
        "pack.strategy": (config.pack.strategy, PackConfig().strategy, why),
        "pack.max_docs": (config.pack.max_docs, None, why),
        "pack.align": (config.pack.align, 1, why),
        "pack.parallel": (config.pack.parallel, None, why),
        "loss": (config.loss, LossConfig(), "a preference loss has no weights"),
        "pack.window_tokens": (config.pack.window_tokens, None, why),
        "mask": (config.mask, MaskConfig(), "a preference loss is over the two completions, whatever the mask"),
        "keep_untrained": (config.keep_untrained, False, "a pair has two completions, or it is left out"),
    }
    for source in config.sources:
        unused[f"sources.{source.name}.loss_weight"] = source.loss_weight, None, "a preference loss has no weights"
    for key, (value, default, reason) in unused.items():
        if value != default:
            raise ConfigError(f"{key}: {reason}; leave it out")
    if config.truncate.overlong == "split":
        raise ConfigError("truncate.overlong: a preference pair cannot be split; choose truncate, drop or error")


def what_it_is(file: InputFile, reason: str, *, line: bool = True) -> str:
    """A sentence about a file: its columns, or what it may be instead of JSON lines; "" if unknown.

    Args:
        line: name the line; not for samples, whose line numbers differ from the input's.
    """
    table = any(block.kind != "lines" for block in file.blocks)
    if reason != "missing_key" if table else reason not in _NO_ROW:
        return ""
    try:
        if table:
            names = [f"`{name}`" for row in sample_rows(file, 1) for name in row]
            return f" Its columns are {', '.join(names[:_COLUMNS])}{', …' if len(names) > _COLUMNS else ''}."
        if sample_rows(file, 1):
            return ""
        found = first_misfit(file)
    except InputError:  # it has changed in the meantime
        return ""
    return "" if found is None else f" {f'In line {found[0]:,}' if line else 'There'}, {found[1]}."


def first_misfit(file: InputFile, max_row_bytes: int = 16 << 20) -> tuple[int, str] | None:
    """(number from 1, what it is and what to do) of the first non-blank line in a file without rows."""
    for block in file.blocks:
        rows = read_rows(file.where(block), block, max_row_bytes)
        if rows.rejects:
            number, reason, detail = rows.rejects[0]
            return block.first_line + number + 1, f"{reason}: {detail}"
        for place, (number, line) in enumerate(rows.lines or ()):
            if line.strip():
                following = b"\n".join(one for _, one in (rows.lines or ())[place : place + 5000])
                return block.first_line + number + 1, misfit(line, following[:LOOKED_AT])
    return None
