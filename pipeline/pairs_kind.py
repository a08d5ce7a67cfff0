"""Whether a run is one of preference data, and whether its configuration is one for that."""

from collections.abc import Mapping, Sequence

from ..schemas.config import MaskConfig, PackConfig, RunConfig
from ..schemas.errors import ConfigError
from ..stages.prep import make_format
from .formats import SourceFormat
from .sources import InputFile, sample_rows

PREFERENCE = "preference"
"""The format of preference data."""
SAMPLE_ROWS = 200
"""First rows of a source from which it is found out what a person's own reader gives."""


def is_preference(config: RunConfig, formats: Mapping[str, SourceFormat], files: Sequence[InputFile]) -> bool:
    """Whether all sources are preference data. What a person's own reader gives, its first example tells.

    Raises:
        ConfigError: some sources are and others are not, or the configuration asks for what is done to packed rows.
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
            f"sources.{others[0]} is no preference data, but sources.{pairs[0]} is: pairs are not packed, and are "
            "written in other columns. Make two runs of them"
        )
    _check(config)
    return True


def _gives_pairs(form: SourceFormat, file: InputFile) -> bool | None:
    """None where no row says it."""
    if form.name != "python":
        return form.name == PREFERENCE
    reader = make_format(form.name, form.options)
    for number, row in enumerate(sample_rows(file, SAMPLE_ROWS)):
        for example in reader.prepare_rows([(number, row)]).examples:
            return example.rejected is not None
    return None


def _check(config: RunConfig) -> None:
    """Raise ConfigError for an option that means nothing here: it would be ignored without a word."""
    why = "preference pairs are not packed, each is a row of its own"
    unused = {
        "pack.strategy": (config.pack.strategy, PackConfig().strategy, why),
        "pack.max_docs": (config.pack.max_docs, None, why),
        "pack.align": (config.pack.align, 1, why),
        "pack.window_tokens": (config.pack.window_tokens, None, why),
        "mask": (config.mask, MaskConfig(), "a preference loss is over the two completions, whatever the mask"),
        "keep_untrained": (config.keep_untrained, False, "a pair has two completions, or it is left out"),
    }
    for key, (value, default, reason) in unused.items():
        if value != default:
            raise ConfigError(f"{key}: {reason}; leave it out")
    if config.truncate.overlong == "split":
        raise ConfigError("truncate.overlong: a preference pair cannot be split; choose truncate, drop or error")
