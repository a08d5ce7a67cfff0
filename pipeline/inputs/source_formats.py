"""The format of each source and its options, from the configuration or from its first rows."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ...schemas.config.config import RunConfig, SourceConfig
from ...schemas.config.source import AUTO, FORMAT_KEYS
from ...schemas.errors import ConfigError, InputError, PacktrainError
from ...schemas.units import plural
from ...stages.prep import Format, Options, make_format
from ...stages.prep.detect import detect
from ..configfile import with_format
from .blocks import InputFile
from .read import prepare_rows, read_rows, sample_rows
from .user_reader import is_reader, reader_options

SAMPLE_ROWS = 200
"""How many first rows of a source's first file to check."""
_COLUMNS = 12
"""Maximum number of columns to name."""
_MISFITS = ("missing_key", "wrong_type")
"""Reasons that mean a row is in another format."""
_DAMAGED = ("invalid_json", "invalid_utf8", "not_an_object")
"""Reasons that mean a line is not a row."""


@dataclass(frozen=True, slots=True)
class SourceFormat:
    """How the rows of one source are read."""

    name: str
    """Name of the format in `stages.prep.FORMATS`."""
    options: Options
    said: str | None = None
    """What was detected and why, if the configuration left it open."""

    def make(self) -> Format:
        """The format itself."""
        return make_format(self.name, self.options)

    def payload(self) -> dict[str, Any]:
        """The format in the plan."""
        return {"format": self.name, "options": self.options.payload()}


def format_options(source: SourceConfig, *, prompt_only: bool = False) -> Options:
    """The options of a source's format, once `auto` and readers are resolved.

    Raises:
        ConfigError: a renamed key is invalid.
    """
    options = Options(
        keys={str(key): name for key, name in source.keys.items()},
        style=source.style,
        per_turn=source.expand == "per_turn",
        prompt_only=prompt_only,
        max_solutions=source.apps.max_solutions if source.format == "apps" else None,
    )
    return replace(options, style=make_format(source.format, options).style)


def resolve_formats(config: RunConfig, base: Path, files: Sequence[InputFile]) -> dict[str, SourceFormat]:
    """The format of every source, by the source's name.

    Raises:
        ConfigError: a source's rows fit no format or several, or its reader cannot be used.
        InputError: a source's rows do not fit its configured format.
    """
    out = {}
    for source in config.sources:
        own = [file for file in files if file.source == source.name]
        out[source.name] = resolve_format(source, base, own)
        if source.format != AUTO and not is_reader(source.format):
            _check_columns(config, source, out[source.name], own)
    return out


def resolve_format(
    source: SourceConfig, base: Path, files: Sequence[InputFile], *, prompt_only: bool = False
) -> SourceFormat:
    """The format of a source.

    Args:
        files: those of the source; `auto` looks into the first.
        prompt_only: completions are not needed.

    Raises:
        ConfigError: its rows fit no format or several, or its reader cannot be used.
        InputError: it has no rows.
    """
    where = f"sources.{source.name}"
    if is_reader(source.format):
        options = reader_options(source.format, base, f"{where}.format", per_turn=source.expand == "per_turn")
        return SourceFormat("python", options)
    if source.format != AUTO:
        return SourceFormat(source.format, format_options(source, prompt_only=prompt_only))
    rows = sample_rows(files[0], SAMPLE_ROWS)
    if not rows:
        raise _no_rows(source, files[0])
    try:
        found = detect(rows, {str(key): name for key, name in source.keys.items()})
    except ConfigError as error:
        raise ConfigError(f"{where}: format auto: in {files[0].shown}, {error}") from None
    try:
        resolved = with_format(source, found.format, found.keys)
    except ConfigError as error:
        raise ConfigError(f"{where}: format auto found {found.format}, because {found.why}; but {error}") from None
    said = f"source {source.name}: format {found.format}, because {found.why}, in {files[0].shown}"
    prompt = found.keys.get("prompt", "prompt")
    if (
        found.format in ("prompt_completion", "preference")
        and resolved.style is None
        and any(isinstance(row.get(prompt), str) for row in rows)
    ):
        said += "; texts are joined as they are (style=chat makes turns of them)"
    return SourceFormat(found.format, format_options(resolved, prompt_only=prompt_only), said)


def _check_columns(config: RunConfig, source: SourceConfig, form: SourceFormat, files: Sequence[InputFile]) -> None:
    """Refuse a source of whose first rows none has the columns of its format, before anything is encoded.

    Raises:
        InputError: says what the first row has, and which format it would fit.
    """
    file, block = files[0], files[0].blocks[0]
    rows = read_rows(file.path, block, source.max_row_bytes, limit=SAMPLE_ROWS)
    seen = prepare_rows(rows, form.make())
    misfits = [one for one in seen.rejects if one[1] in _MISFITS]
    if not misfits or len(misfits) + sum(reason in _DAMAGED for _, reason, _ in seen.rejects) < seen.rows:
        return
    line, reason, detail = misfits[0]
    fix = what_fits(files, {source.name: form})
    found = re.match("the row has no `(.+?)`", detail)
    keys = FORMAT_KEYS[source.format]
    if not fix and found is not None and source.format != "apps":
        key = next((key for key, column in source.keys.items() if column == found[1]), found[1])
        named = f"sources.{config.sources.index(source)}.keys.{key if key in keys else keys[0]}=COLUMN"
        fix = f"If that column has another name here, say which: {named}"
    fits = f"None of the {plural(seen.rows, 'first row')} fits" if seen.rows > 1 else "The only row does not fit"
    said = f"{reason}: {detail.removesuffix('.')}.{what_it_is(file, reason)} {fits} format {form.name}. "
    said += fix or "Choose another format, or leave it out to detect it"
    raise InputError(f"sources.{source.name}: {file.origin or file.path}, line {line + 1:,}: {said}")


def what_fits(files: Sequence[InputFile], formats: Mapping[str, SourceFormat]) -> str:
    """A sentence that names the format that the rows of a source fit, if another is configured; else ""."""
    for name, form in formats.items():
        file = next((one for one in files if one.source == name), None)
        if file is None or form.name == "python":
            continue
        with suppress(PacktrainError):  # none or several fit, or the file has changed
            found = detect(sample_rows(file, SAMPLE_ROWS))
            if found.format != form.name:
                return (
                    f"The rows of source {name} fit format {found.format}, not {form.name}: {found.why}; leave the "
                    "format out to detect it"
                )
    return ""


def _no_rows(source: SourceConfig, file: InputFile) -> InputError:
    where, block = f"sources.{source.name}: {file.origin or file.path}", file.blocks[0]
    seen = prepare_rows(read_rows(file.path, block, source.max_row_bytes), make_format("text"))
    if not seen.rejects:
        return InputError(f"{where}: every line is blank; remove it, or fill it")
    line, reason, detail = seen.rejects[0]
    said = f"{reason}: {detail.removesuffix('.')}. None of its rows can be used.{what_it_is(file, reason)}"
    return InputError(f"{where}, line {line + 1:,}: {said}")


def what_it_is(file: InputFile, reason: str) -> str:
    """A sentence about a file whose rows are rejected: its columns, or what it should be; "" if neither helps."""
    kinds = {block.kind for block in file.blocks}
    if reason in _DAMAGED and kinds == {"lines"}:
        return (
            ' In JSONL each line is an object, such as {"text": "x"}: `jq -c .` makes such lines of other JSON. Call '
            "the file .csv, .tsv or .txt if it is one."
        )
    if reason == "missing_key" and kinds != {"lines"}:
        with suppress(PacktrainError):  # it has changed in the meantime
            names = [f"`{name}`" for row in sample_rows(file, 1) for name in row]
            return f" Its columns are {', '.join(names[:_COLUMNS])}{', …' if len(names) > _COLUMNS else ''}."
    return ""
