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
from ...schemas.errors import ConfigError, InputError
from ...schemas.units import plural
from ...stages.prep import Format, Options, make_format
from ...stages.prep.detect import detect
from ..configfile import with_format
from .blocks import InputFile
from .file_kinds import misfit
from .read import prepare_rows, read_rows, sample_rows
from .user_reader import is_reader, reader_options

SAMPLE_ROWS = 200
"""How many first rows of a source's first file to check."""
_COLUMNS = 12
"""Maximum number of columns to name."""
_LONGEST = 16 << 20
"""Maximum bytes of a line to look at."""
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
        NoRowsError: a source's rows do not fit its configured format.
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
        raise _no_rows(files[0], where)
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
    """Refuse a source without a row that has the columns of its format, before anything is encoded.

    Checks the first rows of every block until one fits; of the source's first block, all rows after that.

    Raises:
        NoRowsError: no row fits; says what the first row has, and which format it would fit.
    """
    reader, looked = form.make(), 0
    first: tuple[InputFile, int, str, str] | None = None
    blocks = [(file, block) for file in files for block in file.blocks]
    for number, (file, block) in enumerate((blocks[0], *blocks)):
        limit = None if number == 1 else SAMPLE_ROWS
        seen = prepare_rows(read_rows(file.where(block), block, source.max_row_bytes, limit=limit), reader)
        misfits = [one for one in seen.rejects if one[1] in _MISFITS]
        if len(misfits) + sum(reason in _DAMAGED for _, reason, _ in seen.rejects) < seen.rows:
            return
        looked += len(misfits) if number else 0
        if first is None and misfits:
            line, reason, detail = misfits[0]
            first = file, block.first_line + line + 1, reason, detail
    if first is None:
        return
    file, line, reason, detail = first
    fix = what_fits(files, {source.name: form})
    found = re.match("the row has no `(.+?)`", detail)
    keys = FORMAT_KEYS[source.format]
    if not fix and found is not None and source.format != "apps":
        key = next((key for key, column in source.keys.items() if column == found[1]), found[1])
        named = f"sources.{config.sources.index(source)}.keys.{key if key in keys else keys[0]}=COLUMN"
        fix = f"If that column has another name here, say which: {named}"
    fits = "The only row does not fit" if looked == 1 else f"None of the {looked:,} rows looked at fits"
    said = f"{reason}: {detail.removesuffix('.')}.{what_it_is(file, reason)} {fits} format {form.name}. "
    said += fix or "Choose another format, or leave it out to detect it"
    raise NoRowsError(f"sources.{source.name}", file.origin or str(file.path), line, said)


def what_fits(files: Sequence[InputFile], formats: Mapping[str, SourceFormat]) -> str:
    """A sentence that names the format that the rows of a source fit, if another is configured; else ""."""
    for name, form in formats.items():
        file = next((one for one in files if one.source == name), None)
        if file is None or form.name == "python":
            continue
        with suppress(ConfigError, InputError):  # none or several fit, or the file has changed
            found = detect(sample_rows(file, SAMPLE_ROWS))
            if found.format != form.name:
                return (
                    f"The rows of source {name} fit format {found.format}, not {form.name}: {found.why}; leave the "
                    "format out to detect it"
                )
    return ""


class NoRowsError(InputError):
    """A file has no row that is an object, or none that fits the format of its source.

    Args:
        path: of the file.
        line: the first row's line, from 1; None if unknown.
        said: what was found there, and what to do.
    """

    def __init__(self, where: str, path: str, line: int | None, said: str) -> None:
        super().__init__(f"{where}: {path}{f', line {line:,}' if line is not None else ''}: {said}")
        self.where, self.path, self.line, self.said = where, path, line, said


def _no_rows(file: InputFile, where: str) -> NoRowsError:
    line, said = _first_misfit(file) or (None, "every line is blank; remove it, or fill it")
    count = plural(file.lines, "row")
    return NoRowsError(where, file.origin or str(file.path), line, f"{said} (none of its {count} can be used)")


def what_it_is(file: InputFile, reason: str, *, line: bool = True) -> str:
    """A sentence about a file: its columns, or what it may be instead of JSON lines; "" if unknown.

    Args:
        line: name the line; not for samples, whose line numbers differ from the input's.
    """
    table = any(block.kind != "lines" for block in file.blocks)
    if reason != "missing_key" if table else reason not in _DAMAGED:
        return ""
    with suppress(InputError):  # it has changed in the meantime
        rows = sample_rows(file, 1)
        if table:
            names = [f"`{name}`" for row in rows for name in row]
            return f" Its columns are {', '.join(names[:_COLUMNS])}{', …' if len(names) > _COLUMNS else ''}."
        if not rows and (found := _first_misfit(file)) is not None:
            return f" {f'In line {found[0]:,}' if line else 'There'}, {found[1]}."
    return ""


def _first_misfit(file: InputFile) -> tuple[int, str] | None:
    """(number from 1, what it is and what to do) of the first row in a file without rows; None if all are blank."""
    for block in file.blocks:
        rows = read_rows(file.where(block), block, _LONGEST)
        if rows.rejects:
            number, reason, detail = rows.rejects[0]
            return block.first_line + number + 1, f"{reason}: {detail}"
        for number, line in rows.lines or ():
            if line.strip():
                return block.first_line + number + 1, misfit(line)
    return None
