"""The format of each source and its options, from the configuration or from its first rows."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ...schemas.config.config import RunConfig, SourceConfig
from ...schemas.config.source import AUTO, PYTHON, SourceMaskConfig
from ...schemas.errors import ConfigError, InputError, RowRejectedError
from ...schemas.tables.row_formats import ROW_FORMATS
from ...stages.prep import Format, Options, ReaderCode, RejectedRow, make_format
from ...stages.prep.detect import detect
from ...stages.prep.reader import reader_of
from ...stages.select.where import Where
from ..configfile import with_format
from .blocks import InputFile
from .read import prepare_rows, read_rows, sample_rows

_SAMPLE_ROWS = 200
"""How many first rows of a source's first file to check."""
_CONDITION_ROWS = 100
"""How many first rows of a source's first file its condition is tried on."""
_MISFITS = ("missing_key", "wrong_type")
"""Reasons that mean a row is in another format."""
_DAMAGED = ("invalid_json", "invalid_utf8", "not_an_object")
"""Reasons that mean a line is not a row."""
_BROKEN = (*_DAMAGED, "half_surrogate")
"""Reasons that mean a line cannot be read."""
_PREFERENCE = "preference"
_STYLED_FIELDS = {"prompt_completion": "prompt", _PREFERENCE: "chosen"}
"""Format whose rows may be texts or conversations → the field whose value shows which they are."""
# What a note says of such rows, if they are texts and the configuration names no style.
_TEXTS_ARE_JOINED = "texts are joined as they are (style=chat makes turns of them)"
_MASKS = ("loss", "mask", "keep_untrained")
"""Keys of the configuration that preference pairs do not have: their loss is over both completions."""
_SHARED_ROWS = ("pack.row_length", "pack.max_docs", "pack.share", "pack.align", "pack.parallel", "pack.window_tokens")
"""Keys of the configuration for rows that several pairs share."""


@dataclass(frozen=True, slots=True)
class SourceFormat:
    """How the rows of one source are read."""

    name: str
    """Name of the format in `stages.prep.FORMATS`."""
    options: Options
    note: str | None = None
    """A sentence for the user: what was detected and why, or what the configuration leaves open; None for neither."""

    def make(self) -> Format:
        """The format itself."""
        return make_format(self.name, self.options)

    def payload(self) -> dict[str, Any]:
        """What the plan records of the format."""
        return {"format": self.name, "options": self.options.payload()}


def format_options(source: SourceConfig, *, prompt_only: bool = False) -> Options:
    """The options of a source's format.

    Args:
        source: its format is the name of one, neither `auto` nor a user's own reader.
        prompt_only: rows need no completion.

    Raises:
        ConfigError: a renamed key is invalid.
    """
    options = Options(
        keys={str(key): name for key, name in source.keys.items()},
        style=source.style,
        per_turn=source.expand == "per_turn",
        prompt_only=prompt_only,
        max_solutions=source.max_solutions,
    )
    # If no style is configured, the format fills in its own, so that the plan records which it was.
    return replace(options, style=make_format(source.format, options).style)


def resolve_formats(sources: Sequence[SourceConfig], base: Path, files: Sequence[InputFile]) -> dict[str, SourceFormat]:
    """The format of every source, by the source's name.

    Args:
        base: the folder at which relative paths begin.
        files: of all sources.

    Raises:
        ConfigError: the rows of a source fit no format or several; its reader or its condition cannot be used.
        InputError: a source has no rows, or they do not fit its configured format.
    """
    formats = {}
    for number, source in enumerate(sources):
        source_files = [file for file in files if file.source == source.name]
        form = resolve_format(source, base, source_files, number=number)
        # A format that was detected fits, and a reader says itself what it does not read.
        if source.format != AUTO and not is_reader(source.format):
            _require_fitting_rows(source, number, form, source_files[0])
        formats[source.name] = form
    return formats


def resolve_format(
    source: SourceConfig, base: Path, files: Sequence[InputFile], *, prompt_only: bool = False, number: int = 0
) -> SourceFormat:
    """The format of a source. Its condition is tried on the first rows.

    Args:
        files: those of the source; `auto` looks into the first.
        prompt_only: rows need no completion.
        number: which of the sources it is, from 0.

    Raises:
        ConfigError: its rows fit no format or several; its reader or its condition cannot be used.
        InputError: it has no rows.
    """
    form = _format_of(source, base, files[0], prompt_only, number)
    # Before anything is encoded: a misspelt name in a condition would leave out all rows.
    if source.where is not None:
        first_rows = enumerate(sample_rows(files[0], _CONDITION_ROWS, source.max_row_bytes))
        examples = form.make().prepare(first_rows).examples
        Where(source.where, f"sources.{source.name}.where").check(examples)
    return form


def _format_of(source: SourceConfig, base: Path, file: InputFile, prompt_only: bool, number: int) -> SourceFormat:
    """The format of a source: a reader, the configured one, or the one that the first rows of a file have.

    Args:
        prompt_only, number: see `resolve_format`.
    """
    key = f"sources.{source.name}"
    if is_reader(source.format):
        options = reader_options(source.format, base, f"{key}.format", per_turn=source.expand == "per_turn")
        return SourceFormat("python", options)
    if source.format != AUTO:
        options = format_options(source, prompt_only=prompt_only)
        note = None
        if source.format in _STYLED_FIELDS:  # rows of other formats are not read for a note
            rows = sample_rows(file, _SAMPLE_ROWS, source.max_row_bytes)
            if _joins_texts(source, rows):
                note = f"source {source.name}: {_TEXTS_ARE_JOINED}"
        return SourceFormat(source.format, options, note)
    return _detect_format(source, file, prompt_only, number)


def _detect_format(source: SourceConfig, file: InputFile, prompt_only: bool, number: int) -> SourceFormat:
    """The format that the first rows of a file have, with the sentence that says why.

    Args:
        prompt_only, number: see `resolve_format`.

    Raises:
        ConfigError: they have none or several; or a key of the source does not fit the format that they have.
        InputError: there are no rows.
    """
    key = f"sources.{source.name}"
    rows = sample_rows(file, _SAMPLE_ROWS, source.max_row_bytes)
    if not rows:
        reject = _first_damage(file, source.max_row_bytes) or RejectedRow(
            row=0, reason="blank", detail="the first lines are blank"
        )
        fix = f"No row can be used.{describe_damaged_lines(file, reject.reason)}"
        raise _unusable(source, file, reject, fix)
    try:
        keys = {str(field): column for field, column in source.keys.items()}
        detected = detect(rows, keys, number=number)
    except ConfigError as error:
        raise ConfigError(f"{key}: format auto: in {file.shown}, {error}") from None
    try:
        resolved = with_format(source, detected.format, detected.keys)
    except ConfigError as error:
        raise ConfigError(f"{key}: format auto found {detected.format}, because {detected.why}; but {error}") from None
    # Told to the user: a format that is detected wrongly trains other text than is meant, without any error.
    note = f"source {source.name}: format {detected.format}, because {detected.why}, in {file.shown}"
    if _joins_texts(resolved, rows):
        note += f"; {_TEXTS_ARE_JOINED}"
    return SourceFormat(detected.format, format_options(resolved, prompt_only=prompt_only), note)


def _joins_texts(source: SourceConfig, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether rows have texts that are joined without a chat template, and the configuration does not say so. Nothing
    in texts shows whether they are turns of a chat, so a note tells the user.

    Args:
        source: with its format, which is not `auto`.
        rows: its first ones.
    """
    field = _STYLED_FIELDS.get(source.format)
    if field is None or source.style is not None:
        return False
    column = source.keys.get(field, field)
    return any(isinstance(row.get(column), str) for row in rows)


def _first_damage(file: InputFile, max_row_bytes: int) -> RejectedRow | None:
    """The first line of a file's first block that is no JSON object, with the reason and its detail; None if all are
    objects or blank.
    """
    rows = read_rows(file.blocks[0], max_row_bytes)
    any_object = make_format("python")  # takes each object as it is
    # Rows that could not be read at all, such as too long ones, are listed apart from the lines: the first damage is
    # the first row of either list.
    damaged = list(rows.rejects[:1])
    for number, line in rows.lines:
        if line and not line.isspace():
            try:
                any_object.decode(line)
            except RowRejectedError as error:
                damaged.append(RejectedRow(number, error.reason, error.detail))
                break
    return min(damaged, key=lambda reject: reject.row, default=None)


def _require_fitting_rows(source: SourceConfig, number: int, form: SourceFormat, file: InputFile) -> None:
    """Refuse a source if none of its first rows has the columns of its format, before anything is encoded.

    Args:
        number: which of the sources it is, from 0, for the message.
        file: the first one of the source.

    Raises:
        InputError: says what the first row lacks.
    """
    prepared = prepare_rows(read_rows(file.blocks[0], source.max_row_bytes, limit=_SAMPLE_ROWS), form.make())
    misfits = [reject for reject in prepared.rejects if reject.reason in _MISFITS]
    broken = [reject for reject in prepared.rejects if reject.reason in _BROKEN]
    # The rows beside misfits and broken ones fit: also a row that is rejected only for what its columns contain.
    if misfits and len(misfits) + len(broken) == prepared.rows:
        fix = f"None of the first rows fits format {form.name}. Leave it out to detect it"
        keys = ROW_FORMATS[source.format].keys
        if len(keys) > 1:
            fix += f", or name the columns, such as sources.{number}.keys.{keys[0]}=COLUMN"
        raise _unusable(source, file, misfits[0], fix)


def _unusable(source: SourceConfig, file: InputFile, reject: RejectedRow, fix: str) -> InputError:
    """The error for a source that is refused by one of its rows, with a sentence on what to do."""
    place = f"sources.{source.name}: {file.origin or file.path}, line {reject.row + 1:,}"
    return InputError(f"{place}: {reject.reason}: {reject.detail.removesuffix('.')}. {fix}")


def describe_damaged_lines(file: InputFile, reason: str) -> str:
    """A sentence about a file whose lines are rejected for this reason, if they are no JSON; else ""."""
    if reason not in _DAMAGED or file.blocks[0].kind != "lines":
        return ""
    if reason == "invalid_utf8":
        return " Lines of JSON are in UTF-8: `iconv -f LATIN1 -t UTF-8` converts a file, from the encoding that it has."
    return (
        ' In JSONL each line is an object, such as {"text": "x"}: `jq -c .` makes such lines of other JSON. Call the '
        "file .csv, .tsv or .txt if it is one."
    )


# A user's own reader


def is_reader(format: str) -> bool:
    """Whether a format names a user's own function."""
    return format.startswith(PYTHON)


def reader_options(format: str, base: Path, where: str, *, per_turn: bool) -> Options:
    """The options of a reader, including the source of its module: tasks on other machines run this text. The module is
    found without importing it, and run once as a check.

    Args:
        format: `python:MODULE:FUNCTION`.
        base: the folder of the configuration.
        where: the key of the configuration, for messages.

    Raises:
        ConfigError: it cannot be found, read or run, or has no such function.
    """
    _, module, function = format.split(":")
    relative = Path(*module.split("."))
    # As Python would find it, with the configuration's folder first.
    candidates = list[Path]()
    for folder in (base, *map(Path, sys.path)):
        candidates.append((folder / relative).with_suffix(".py"))
        candidates.append(folder / relative / "__init__.py")
    file = next((candidate.absolute() for candidate in candidates if candidate.is_file()), None)
    if file is None:
        raise ConfigError(
            f"{where}: the module {module} is neither in {base} nor on Python's path; check its name, or put "
            f"{relative}.py beside the configuration"
        )
    try:
        code = file.read_text(encoding="utf-8")
        reader = ReaderCode(function=function, code=code, path=str(file), folder=str(base.absolute()))
        reader_of(reader)
    except ConfigError as error:
        # Its cause is the exception of the user's module, if it raised one.
        raise ConfigError(f"{where}: {error}") from error.__cause__
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: {file} cannot be read: {error}; fix that, or name another reader") from None
    return Options(per_turn=per_turn, reader=reader)


# Preference pairs


def is_preference(config: RunConfig, formats: Mapping[str, SourceFormat], files: Sequence[InputFile]) -> bool:
    """Whether all sources are preference data. For a user's own reader, its first example decides.

    Raises:
        ConfigError: only some sources are, or the configuration has options that pairs do not have.
    """
    pair_sources = []
    other_sources = []
    for source in config.sources:
        name = source.name
        file = next(file for file in files if file.source == name)
        has_pairs = _has_pairs(formats[name], file, source.max_row_bytes)
        if has_pairs:
            pair_sources.append(name)
        elif has_pairs is False:  # a source that shows nothing agrees with either
            other_sources.append(name)
    if not pair_sources:
        return False
    if other_sources:
        raise ConfigError(
            f"sources.{other_sources[0]} is not preference data, but sources.{pair_sources[0]} is: the rows of pairs "
            "have columns that others lack. Use two runs"
        )
    _check_pairs(config)
    return True


def _check_pairs(config: RunConfig) -> None:
    """Refuse what preference pairs do not have.

    Raises:
        ConfigError: names the key, and what to do.
    """
    masks = _keys_set(config, _MASKS)
    for source in config.sources:
        if source.mask != SourceMaskConfig():
            masks.append(f"sources.{source.name}.mask")
        if source.loss_weight is not None:
            masks.append(f"sources.{source.name}.loss_weight")
    if masks:
        raise ConfigError(f"{masks[0]}: preference pairs train both completions whole, without weights; leave it out")
    # The loss compares two completions behind one prompt, which the later pieces of a pair would lack.
    if config.truncate.overlong == "split":
        raise ConfigError("truncate.overlong: a preference pair cannot be split; choose truncate or drop")
    pack = config.pack
    if pack.cuts_documents:
        raise ConfigError(
            f"pack.strategy: {pack.strategy} would cut preference pairs, which share a row whole; choose bfd, tight, "
            "or none for TRL's columns"
        )
    if pack.share == "group":
        raise ConfigError("pack.share: group compares no preference pairs, whose sides share their prompt; take row")
    if pack.does.is_packing:  # `does` is the entry of the strategy in `STRATEGIES`; all but `none` are packing
        if pack.max_docs == 1:
            raise ConfigError("pack.max_docs: a pair is two documents; give at least 2")
    elif keys := _keys_set(config, _SHARED_ROWS):
        raise ConfigError(
            f"{keys[0]}: pack.strategy none makes a row of each preference pair, in columns for TRL; leave it out, or "
            "take bfd"
        )


def _keys_set(config: RunConfig, keys: Iterable[str]) -> list[str]:
    """The keys among `keys` that a configuration gives another value than their default."""
    # A configuration with the keys that it must have, and the default of every other key.
    defaults = RunConfig.model_construct(out=config.out, tokenizer=config.tokenizer, sources=config.sources)
    return [key for key in keys if attrgetter(key)(config) != attrgetter(key)(defaults)]


def _has_pairs(form: SourceFormat, file: InputFile, max_row_bytes: int) -> bool | None:
    """Whether a source has pairs; None if no row shows it."""
    if form.name != "python":  # the format's name says it; of a user's own reader, its first example
        return form.name == _PREFERENCE
    examples = form.make().prepare(enumerate(sample_rows(file, _SAMPLE_ROWS, max_row_bytes))).examples
    return examples[0].rejected is not None if examples else None
