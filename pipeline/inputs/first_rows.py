"""Checks of the inputs' first rows before encoding: conditions, preference pairs."""

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError
from operator import attrgetter

from ...schemas.config.config import RunConfig, SourceConfig
from ...schemas.config.mask import SourceMaskConfig
from ...schemas.errors import ConfigError
from ...schemas.fingerprint import version
from ...stages.prep import make_format
from ...stages.select.where import Where
from .blocks import InputFile
from .read import sample_rows
from .source_formats import SAMPLE_ROWS, SourceFormat

_CONDITION_ROWS = 100
_PREFERENCE = "preference"


_PACKS = ("strategy", "max_docs", "align", "parallel", "window_tokens")
_NOT_FOR_PAIRS = {f"pack.{key}": "preference pairs are not packed, each is a row of its own" for key in _PACKS} | {
    "loss": "a preference loss has no weights",
    "mask": "a preference loss is over the two completions, whatever the mask",
    "keep_untrained": "a pair has two completions, or it is left out",
}
"""Keys of the configuration that do not apply, and why."""


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
        where.check(form.prepare(enumerate(sample_rows(first, _CONDITION_ROWS, source.max_row_bytes))).examples)


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
        for example in reader.prepare([(number, row)]).examples:
            return example.rejected is not None
    return None


def _check(config: RunConfig) -> None:
    """Raise ConfigError for options that do not apply and would be ignored silently."""
    plain = RunConfig.model_construct(out=config.out, tokenizer=config.tokenizer, sources=config.sources)
    set_here = {key: why for key, why in _NOT_FOR_PAIRS.items() if attrgetter(key)(config) != attrgetter(key)(plain)}
    for source in config.sources:
        if source.mask != SourceMaskConfig():
            set_here[f"sources.{source.name}.mask"] = _NOT_FOR_PAIRS["mask"]
        if source.loss_weight is not None:
            set_here[f"sources.{source.name}.loss_weight"] = _NOT_FOR_PAIRS["loss"]
    for key, why in set_here.items():
        raise ConfigError(f"{key}: {why}; leave it out")
    if config.truncate.overlong == "split":
        raise ConfigError("truncate.overlong: a preference pair cannot be split; choose truncate or drop")
