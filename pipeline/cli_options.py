"""Options that several commands take, and what `--json` prints."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from ..schemas.units import parse_duration
from . import completion
from .cli_streams import print_line


def _seconds(text: str) -> float:
    try:
        return parse_duration(str(text))  # a default comes as the number that it is
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _days(text: str) -> float:
    """A plain number is of days, because `--older-than 7` always was."""
    try:
        return float(text) if float(text) >= 0 else _seconds(text)
    except ValueError:
        return _seconds(text) / 86400


def seconds_option(help: str, *names: str, default: str) -> Any:
    """An option that takes a duration, and shows its default as people write it."""
    return typer.Option(*names, parser=_seconds, metavar="DURATION", help=help, show_default=default)


def days_option(help: str, *names: str, default: str) -> Any:
    """The same, where a plain number is of days."""
    return typer.Option(*names, parser=_days, metavar="DAYS", help=help, show_default=default)


Config = Annotated[
    Path | None, typer.Argument(metavar="CONFIG", help="A YAML configuration, such as mix.yaml.", show_default=False)
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Overrule a key, e.g. truncate.max_length=4096.",
        autocompletion=completion.setting,
    ),
]
TrainSet = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Overrule a key, e.g. trainer.max_steps=100.",
        autocompletion=completion.train_setting,
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="Without a file: messages, sharegpt, alpaca, prompt_completion, preference, tokenized, text, apps or "
        "python:module:function.",
        show_default="from the first rows",
        autocompletion=completion.format,
    ),
]
Input = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="PATH",
        help="Without a file: a data file, a pattern, a folder, a URL or hf://name. May be repeated.",
        autocompletion=completion.path,
    ),
]
Tokenizer = Annotated[
    Path | None,
    typer.Option(help="Without a file: the tokenizer's folder, or a hub's name that the Hugging Face cache holds."),
]
Folder = Annotated[
    str, typer.Argument(metavar="DIR", help="A finished dataset, or its URL.", autocompletion=completion.path)
]
Split = Annotated[str | None, typer.Option(help="Which split.", show_default="train", autocompletion=completion.split)]
Json = Annotated[bool, typer.Option("--json", help="Print what it found as JSON, and nothing else.")]


def print_json(value: Any, indent: int | None = 2) -> None:
    """Print plain data, dataclasses included, as JSON in ASCII.

    In ASCII, so that nothing in data is a control character on its way; JSON leaves one of them as it is. What is not a
    finite number is null, because JSON has no other word for it.
    """
    text = json.dumps(_plain(value), indent=indent, allow_nan=False, default=str)
    print_line(text.replace("\x7f", "\\u007f"))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
