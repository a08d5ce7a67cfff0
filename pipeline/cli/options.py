"""Options that several commands share, how shells complete them, and what turns them into a configuration.

The help of other options stands in the docstrings of their commands; see `help.py`.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...schemas.errors import ConfigError
from ...schemas.tables.masks import POLICIES
from ...schemas.tables.row_formats import ROW_FORMATS
from .completion import setting_completer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ...schemas.config.config import RunConfig
    from ..configfile import Setting


def _settings(example: str, *, training: bool) -> Any:
    """The option --set, for the keys of a run's configuration or of a training's."""
    help = f"Override a key, e.g. {example}."
    return typer.Option("--set", metavar="KEY=VALUE", help=help, autocompletion=setting_completer(training=training))


Config = Annotated[
    Path | None, typer.Argument(metavar="CONFIG", help="A YAML configuration, such as mix.yaml.", show_default=False)
]
Set = Annotated[
    list[str] | None,
    _settings("truncate.max_length=2048, or tokenizer.allow_lost='[system, tools]'", training=False),
]
TrainSet = Annotated[list[str] | None, _settings("trainer.max_steps=100, or out=trained-2", training=True)]
Input = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="PATH",
        help="Without a configuration: a data file, a pattern, a folder, a URL or hf://name; each is a source. May be "
        "repeated.",
    ),
]
Tokenizer = Annotated[
    Path | None,
    typer.Option(help="Without a configuration: the tokenizer's folder, or a hub name in the Hugging Face cache."),
]
Out = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="The folder of the run, or its URL; overrides the configuration."),
]


def choices(*values: str) -> "Callable[[str], list[str]]":
    """A completer for an option that takes one of some values. It only offers them: the configuration, which `--help`
    must not load, refuses others.
    """
    return lambda incomplete: [value for value in values if value.startswith(incomplete)]


Mask = Annotated[
    str | None,
    typer.Option(
        help="What is trained of a conversation. "
        + "; ".join(f"{policy.name}: {policy.sentence}" for policy in POLICIES.values()),
        metavar="POLICY",
        autocompletion=choices(*POLICIES),
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        help="With --input: the format of its rows, such as messages; by default it is found from the first rows.",
        metavar="FORMAT",
        autocompletion=choices(*ROW_FORMATS),
    ),
]
MaxLength = Annotated[int | None, typer.Option(metavar="N", help="Most tokens of an example.")]
RowLength = Annotated[
    int | None, typer.Option(metavar="N", help="Most tokens of a packed row.", show_default="--max-length")
]
Workers = Annotated[int | None, typer.Option(metavar="N", help="Worker processes.", show_default="one for each core")]
Seed = Annotated[int | None, typer.Option(metavar="N", help="Orders rows and chooses what is held out.")]
Folder = Annotated[str, typer.Argument(metavar="DIR", help="A finished dataset, or its URL.")]
Count = Annotated[int, typer.Option(min=1)]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")]
Lengths = Annotated[
    str | None,
    typer.Option(
        metavar="N,N,…",
        help="Lengths to compare, none of which is too long for your memory; the configured one is added.",
        show_default="256 to 131072",
    ),
]

_STANDS_FOR = {
    "out": "out",
    "shard": "run.shard",
    "mask": "mask.policy",
    "against": "contamination.against",
    "max_length": "truncate.max_length",
    "row_length": "pack.row_length",
    "workers": "run.workers",
    "seed": "seed",
}
"""Option → the key that it stands for."""


def load_run(
    config: Path | None,
    settings: list[str] | None,
    inputs: list[str] | None,
    tokenizer: Path | None = None,
    out: str | None = None,
    *,
    format: str | None = None,
    needs: tuple[str, ...] = ("--input",),
    hint: str = "packtrain schema prints all keys of a configuration",
    cache: str | None = None,
    **options: Any,
) -> "tuple[RunConfig, Path]":
    """The configuration of a command, and the folder where its relative paths start.

    A command gets a file, or --input and --tokenizer in its place. Other options are allowed with both.

    Args:
        config: the file; None if there is none.
        settings: the texts after --set, such as `seed=3`.
        inputs: the paths after --input; each becomes a source.
        out: what --out says.
        format: what --format says of the rows of all inputs.
        needs: the options that the command cannot do without if there is no file.
        hint: how else to start, at the end of the message that one of these is missing.
        cache: the cache, unless `--set` names another.
        options: name in `_STANDS_FOR` → the option's value, such as `max_length=2048`; None for one that was not given.

    Raises:
        ConfigError: neither a file nor the options that are needed without one are given, or both; or the configuration
            is invalid.
    """
    from ..configfile import Setting, load_config
    from ..store.open_store import resolve_place
    from ..yaml_file import refuse_data

    if out is not None:
        # Of a command line, relative paths start in the working directory, not in the configuration's folder.
        options["out"] = resolve_place(out, Path.cwd())
    # Where a key is set twice, the later setting counts: options win over `--set`, `--set` over the cache, and all of
    # them over the file.
    overrides: list[str | Setting] = []
    if cache is not None:
        overrides.append(Setting("cache", cache, "the cache"))
    overrides += settings or []
    overrides += _option_settings(options)

    if config is not None:
        # First, because of `packtrain run rows.jsonl --tokenizer …`, where --input was forgotten before the data.
        refuse_data(config)
        if inputs or tokenizer is not None:
            # --out is for a configuration, too.
            in_place = " and ".join(name for name in needs if name != "--out")
            raise ConfigError(f"give either a configuration file, or {in_place}; not both")
        if format is not None:
            raise ConfigError("--format is for --input; in a configuration, each source has its own: sources.0.format=")
        return load_config(config, overrides=overrides)

    values = {"--input": inputs, "--tokenizer": tokenizer, "--out": out}
    missing = [name for name in needs if not values[name]]
    if missing:
        raise ConfigError(f"give a configuration file, or {', '.join(missing)} as well ({hint})")
    paths = inputs or []
    if format is not None:
        # A setting for each source, and not a key of the data: a message about a setting names its option.
        for number in range(len(paths)):
            overrides.append(Setting(f"sources.{number}.format", format, f"--format {format}"))
    return load_config(_data_of_options(paths, tokenizer), Path.cwd(), overrides)


def _option_settings(options: "Mapping[str, Any]") -> "Iterator[Setting]":
    """The settings that options stand for; one without a value sets nothing."""
    from ..configfile import Setting

    for name, value in options.items():
        if value is not None:
            option = f"--{name.replace('_', '-')}"
            # Paths of `against` were made absolute, and are not what the user wrote.
            origin = option if name == "against" else f"{option} {value}"
            yield Setting(_STANDS_FOR[name], value, origin)


def _data_of_options(paths: "Sequence[str]", tokenizer: Path | None) -> dict[str, Any]:
    """The configuration of a command without a file, before its other options: one source for each path."""
    from ..inputs.source_names import name_sources

    sources = [{"name": name, "path": path} for name, path in zip(name_sources(paths), paths, strict=True)]
    # A configuration must have an output and a tokenizer, also for a command that uses neither, such as `prep`.
    return {"out": "packed", "tokenizer": {"path": str(tokenizer or "unused")}, "sources": sources}
