"""What the format of each source is: as the configuration says, or as its first rows do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ..schemas.config import RunConfig, SourceConfig
from ..schemas.errors import ConfigError, InputError
from ..schemas.formats import AUTO
from ..stages.prep import Options
from ..stages.prep.detect import Detection, detect
from .configfile import with_format
from .options import format_options
from .readers import is_reader, reader_options
from .sources import InputFile, first_misfit, sample_rows
from .units import plural

SAMPLE_ROWS = 200
"""First rows of a source's first file that `auto` is decided from."""


@dataclass(frozen=True, slots=True)
class SourceFormat:
    """How the rows of one source are read."""

    name: str
    """As `stages.prep.FORMATS` calls it."""
    options: Options
    said: str | None = None
    """What was found and why, where the configuration left it open."""

    def payload(self) -> dict[str, Any]:
        """What the plan says of it."""
        options: dict[str, Any] = msgspec.to_builtins(self.options.payload())
        return {"format": self.name, "options": options}


def resolve_formats(config: RunConfig, base: Path, files: Sequence[InputFile]) -> dict[str, SourceFormat]:
    """The format of every source, by its name.

    Raises:
        ConfigError: a source's rows fit no format or several, or its reader cannot be used.
    """
    out = {}
    for source in config.sources:
        out[source.name] = resolve_format(source, base, [file for file in files if file.source == source.name])
    return out


def resolve_format(
    source: SourceConfig, base: Path, files: Sequence[InputFile], *, prompt_only: bool = False
) -> SourceFormat:
    """The format of a source.

    Args:
        files: those of the source; the first is looked into for `auto`.
        prompt_only: completions are not asked for.

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
        raise ConfigError(f"{where}: format auto: of {files[0].shown}, {error}") from None
    try:
        resolved = with_format(source, found.format, found.keys)
    except ConfigError as error:
        raise ConfigError(f"{where}: format auto found {found.format}, because {found.why}; but {error}") from None
    said = f"source {source.name}: format {found.format}, because {found.why}, in {files[0].shown}"
    said += _about_style(resolved, found, rows)
    return SourceFormat(found.format, format_options(resolved, prompt_only=prompt_only), said)


def what_fits(files: Sequence[InputFile], formats: Mapping[str, SourceFormat]) -> str:
    """A sentence that names the format which the rows of a source do have, where it is said to have another; or ""."""
    for name, form in formats.items():
        file = next((one for one in files if one.source == name), None)
        if file is None or form.name == "python":
            continue
        try:
            found = detect(sample_rows(file, SAMPLE_ROWS))
        except (ConfigError, InputError):  # none, several, or the file has changed since
            continue
        if found.format != form.name:
            return (
                f"The rows of source {name} fit format {found.format}, not {form.name}: {found.why}; leave the format "
                "out (--format, or format: in the configuration), and it is found"
            )
    return ""


class NoRowsError(InputError):
    """A file has no row that is an object.

    Args:
        path: of the file.
        line: the first one, from 1; None where that is not known.
        said: what was seen there, and what to do.
    """

    def __init__(self, where: str, path: str, line: int | None, said: str) -> None:
        super().__init__(f"{where}: {path}{f', line {line:,}' if line is not None else ''}: {said}")
        self.where, self.path, self.line, self.said = where, path, line, said


def _no_rows(file: InputFile, where: str) -> NoRowsError:
    found = first_misfit(file)
    path = file.origin or str(file.path)
    if found is None:
        return NoRowsError(where, path, None, f"none of its {file.lines:,} lines holds anything; remove it, or fill it")
    line, said = found
    every = (
        "its only line is no JSON object" if file.lines == 1 else f"none of its {file.lines:,} lines is a JSON object"
    )
    if any(block.place is not None for block in file.blocks):
        every = f"none of its {plural(file.lines, 'row')} can be read"
    return NoRowsError(where, path, line, f"{said} ({every})")


def _about_style(source: SourceConfig, found: Detection, rows: Sequence[Mapping[str, Any]]) -> str:
    """A person who has a question and an answer may not know that they are not made turns of."""
    if found.format not in ("prompt_completion", "preference") or source.style is not None:
        return ""
    prompt = found.keys.get("prompt", "prompt")
    if not any(isinstance(row.get(prompt), str) for row in rows):
        return ""
    return "; texts are joined as they are (style: chat makes turns of them)"
