"""Options shared by several commands, how shells complete them, and what turns them into a configuration."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from ...schemas.config.source import AUTO, default_name
from ...schemas.errors import ConfigError
from ...schemas.units import parse_duration, parse_size

if TYPE_CHECKING:
    from ..report.options import ReportOptions


def no_words(incomplete: str) -> list[str]:
    """Nothing, so that the shell completes files and folders itself."""
    return []


def _keys_of_run(incomplete: str) -> list[str]:
    return [f"{key}=" for key in config_keys(training=False) if key.startswith(incomplete)]


def _keys_of_training(incomplete: str) -> list[str]:
    return [f"{key}=" for key in config_keys(training=True) if key.startswith(incomplete)]


def config_keys(*, training: bool) -> list[str]:
    """The keys of a run's configuration, or of a training's."""
    if training:
        from ...training.trainer.config import TrainConfig

        return list(_keys(TrainConfig))
    from ...schemas.config.config import RunConfig

    return list(_keys(RunConfig))


def _keys(model: Any, before: str = "") -> Iterator[str]:
    """The keys of a pydantic model and of its sections; in a list of sections, those of the first."""
    for name, field in model.model_fields.items():
        kinds = (field.annotation, *get_args(field.annotation))
        section = next((one for one in kinds if hasattr(one, "model_fields")), None)
        if section is None:
            yield f"{before}{name}"
        else:
            in_list = section is not field.annotation and type(None) not in kinds
            yield from _keys(section, f"{before}{name}.{'0.' if in_list else ''}")


def _seconds(text: str) -> float:
    try:
        return parse_duration(str(text))  # typer passes a default as a number
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _bytes(text: str) -> int:
    try:
        return parse_size(str(text))  # typer passes a default as a number
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _days(text: str) -> float:
    """A plain number means days: `--older-than 7` is seven days."""
    try:
        return float(text) if float(text) >= 0 else _seconds(text)
    except ValueError:
        return _seconds(text) / 86400


def seconds_option(help: str, *names: str, default: str) -> Any:
    """An option that takes a duration. `default` is what the help shows, such as `1h`."""
    return typer.Option(*names, parser=_seconds, metavar="DURATION", help=help, show_default=default)


def days_option(help: str, *names: str, default: str) -> Any:
    """An option that takes a duration, or a plain number of days."""
    return typer.Option(*names, parser=_days, metavar="DAYS", help=help, show_default=default)


def size_option(help: str, *names: str, default: str) -> Any:
    """An option that takes a number of bytes."""
    return typer.Option(*names, parser=_bytes, metavar="SIZE", help=help, show_default=default)


Config = Annotated[
    Path | None, typer.Argument(metavar="CONFIG", help="A YAML configuration, such as mix.yaml.", show_default=False)
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key, e.g. truncate.max_length=4096, or tokenizer.allow_lost='[system, tools]'.",
        autocompletion=_keys_of_run,
    ),
]
TrainSet = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key, e.g. trainer.max_steps=100.",
        autocompletion=_keys_of_training,
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="Without a configuration: messages, sharegpt, alpaca, prompt_completion, preference, tokenized, text, "
        "apps or python:module:function.",
        show_default="detected from the first rows",
    ),
]
Input = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="PATH",
        help="Without a configuration: a data file, a pattern, a folder, a URL or hf://name. May be repeated.",
        autocompletion=no_words,
    ),
]
Tokenizer = Annotated[
    Path | None,
    typer.Option(help="Without a configuration: the tokenizer's folder, or a hub name in the Hugging Face cache."),
]
Workers = Annotated[int | None, typer.Option(help="Worker processes.", show_default="one per core")]
MaxLength = Annotated[int | None, typer.Option(help="Tokens per packed row; overrides the configuration.")]
Folder = Annotated[str, typer.Argument(metavar="DIR", help="A finished dataset, or its URL.", autocompletion=no_words)]
Split = Annotated[str | None, typer.Option(help="Which split.", show_default="train")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")]

_HINT = "packtrain schema prints all keys of a configuration"

# Options of the commands that make a report.
Lengths = Annotated[
    str | None,
    typer.Option(
        metavar="N,N,…", help="Lengths to compare; the configured one is added.", show_default="256 to 131072"
    ),
]
MaxLengthLimit = Annotated[
    int | None,
    typer.Option(
        min=2,
        metavar="N",
        help="The longest max_length that fits your memory; longer ones are never advised.",
        show_default="the model's positions",
    ),
]
Model = Annotated[
    Path | None,
    typer.Option(
        help="Advise no length above the positions of this model: its folder or config.json.",
        show_default="the model in the tokenizer's folder",
        autocompletion=no_words,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE.html",
        help="The page to write; the numbers go to FILE.json. Missing folders are created.",
    ),
]


def config_or_options(
    config: Path | None,
    format: str | None,
    inputs: list[str] | None,
    tokenizer: Path | None,
    out: str | None,
    hint: str = _HINT,
) -> tuple[Path | dict[str, Any], Path | None]:
    """The configuration file and None, or a configuration from the command line and the folder its paths start from.

    Raises:
        ConfigError: neither or both are given.
    """
    if config is None:
        return without_file(format, inputs, tokenizer, out, hint), Path.cwd()
    if format is not None or inputs or tokenizer is not None:
        raise ConfigError("give either a configuration file, or --format, --input and --tokenizer; not both")
    return config, None


def overriding(settings: list[str] | None, out: str | None, workers: int | None, max_length: int | None) -> list[str]:
    """Overrides of configuration keys: those of `--set`, then the options that stand for a key."""
    from ..store.open import resolve_place

    found = list(settings or [])
    if out is not None:
        found.append(f"out={json.dumps(resolve_place(out, Path.cwd()))}")
    if workers is not None:
        found.append(f"run.workers={workers}")
    if max_length is not None:
        found.append(f"truncate.max_length={max_length}")
    return found


def without_file(
    format: str | None,
    inputs: list[str] | None,
    tokenizer: Path | None,
    out: str | None,
    hint: str = _HINT,
    output: Path | None = Path("unused"),
) -> dict[str, Any]:
    """A configuration made from command-line options alone.

    Raises:
        ConfigError: an option is missing. The message ends with the hint.
    """
    needed = {"--input": inputs, "--tokenizer": tokenizer, "--out": out, "--output": output}
    missing = [name for name, value in needed.items() if not value]
    if missing:
        also = missing.pop() if missing[-1] == "--output" else ""  # needed with a configuration file, too
        ways = f"give a configuration file, or {', '.join(missing)} as well"
        raise ConfigError(f"{ways}{f'; and {also}, the file to write' if also else ''} ({hint})")
    return {
        "out": out,
        "tokenizer": {"path": str(tokenizer)},
        "sources": [{"name": default_name(format or AUTO), "format": format or AUTO, "path": list(inputs or [])}],
    }


def check_page(output: Path | None) -> None:
    """Refuse a bad page name before anything is read. Missing folders are created later.

    Raises:
        ConfigError: the name does not end in .html, is a folder, or has a file as its parent.
    """
    if output is None:
        return
    if output.is_dir():
        raise ConfigError(f"--output: {output} is a folder; name a file in it, such as {output / 'page.html'}")
    if output.suffix != ".html":
        raise ConfigError(f"--output: {output} must end in .html, such as {output.stem}.html")
    there = next(path for path in output.absolute().parents if path.exists())
    if not there.is_dir():
        raise ConfigError(f"--output: {there} is a file, not a folder; choose another place than {output}")


def report_options(lengths: str | None, max_length_limit: int | None, model: Path | None) -> "ReportOptions":
    """The report's options from those of the command line.

    Raises:
        ConfigError: a length is invalid, or the model's configuration cannot be read.
    """
    from ...stages.forecast.sweep import CANDIDATES
    from ..report.options import ReportOptions, limit_of_model

    return ReportOptions(
        lengths=_lengths(lengths) if lengths is not None else CANDIDATES,
        max_length_limit=max_length_limit,
        limit=limit_of_model(model) if model is not None else None,
    )


def _lengths(text: str) -> tuple[int, ...]:
    from ..report.lengths import check_length

    try:
        found = sorted({int(one.replace("_", "")) for one in text.split(",")})
    except ValueError:
        shown = text if len(text) <= 80 else f"{text[:80]}…"
        raise ConfigError(f"--lengths {shown}: give whole numbers, such as 1024,2048,4096") from None
    for length in found:
        check_length(length)
    return tuple(found)
