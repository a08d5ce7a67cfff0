"""The command line. Each command is a thin coat over a function of the package."""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ..schemas.errors import ConfigError, PacktrainError
from .cli_mend import clean, repair, verify
from .cli_options import Set
from .cli_train import doctor, launch, probe, train
from .cli_wait import wait_command, with_seconds

_INTERRUPTED = 130
# Of whichever click typer was built on: its own copy, or the package.
_UsageError: Any = typer.BadParameter.__base__

app = typer.Typer(
    name="packtrain",
    help="Turns conversations, prompt-completion pairs and documents into packed training shards.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="Without a file: messages, sharegpt, alpaca, prompt_completion, preference, tokenized, text, apps or "
        "python:module:function.",
        show_default="from the first rows",
    ),
]
Input = Annotated[
    list[str] | None,
    typer.Option(
        "--input", help="Without a file: a data file, a pattern, a folder, a URL or hf://name. May be repeated."
    ),
]


@app.command()
def run(
    config: Annotated[Path | None, typer.Argument(help="A YAML configuration.", show_default=False)] = None,
    settings: Set = None,
    out: Annotated[
        str | None, typer.Option(help="The folder to write, or its URL; overrules the configuration.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Worker processes.", show_default="one a core")] = None,
    executor: Annotated[
        str | None, typer.Option(help="Who runs the tasks: local, ray or static.", show_default="local")
    ] = None,
    address: Annotated[str | None, typer.Option(help="Of a Ray cluster: auto or host:port.")] = None,
    shard: Annotated[
        str | None, typer.Option(metavar="I/N", help="Which of N runs that share the work this is, from 0.")
    ] = None,
    wait: Annotated[
        str | None, typer.Option(metavar="[SECONDS]", help="Wait for another run on the same folder to end.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and stop.")] = False,
    demo: Annotated[bool, typer.Option("--demo", help="Run the embedded sample.")] = False,
    verify_inputs: Annotated[
        bool, typer.Option("--verify-inputs", help="Of a finished run, compare the inputs by content, too.")
    ] = False,
    format: Format = None,
    input: Input = None,
    tokenizer: Annotated[Path | None, typer.Option(help="Without a file: the tokenizer's folder.")] = None,
    max_length: Annotated[
        int | None, typer.Option(help="Tokens a packed row holds; overrules the configuration.")
    ] = None,
) -> None:
    """Prepare, render, tokenize, mask, truncate and pack; write shards, manifest and ledger."""
    from .configfile import load_config
    from .console import ConsoleObserver, make_console, pipeline_tree, print_summary, say
    from .next_steps import say_next
    from .run import Driver
    from .stores import resolve_place

    began = time.perf_counter()
    given: Path | dict[str, Any]
    base: Path | None = None
    if demo:
        if format is not None or input or tokenizer is not None:
            raise ConfigError("--demo brings its own data and tokenizer; leave --format, --input and --tokenizer out")
        given, base = _demo(config, out)
    elif config is not None:
        if format is not None or input or tokenizer is not None:
            raise ConfigError("give either a configuration file, or --format, --input and --tokenizer; not both")
        given = config
    else:
        given, base = _without_file(format, input, tokenizer, out), Path.cwd()
    overrides = list(settings or [])
    if out is not None and not demo:
        overrides.append(f"out={json.dumps(resolve_place(out, Path.cwd()))}")
    if workers is not None:
        overrides.append(f"run.workers={workers}")
    for key, value in (("executor", executor), ("address", address), ("shard", shard), ("wait", wait)):
        if value is not None:
            overrides.append(f"run.{key}={value}")
    if max_length is not None:
        overrides.append(f"truncate.max_length={max_length}")
    loaded, folder = load_config(given, base, overrides)
    console = make_console()
    with ConsoleObserver(console) as observer:
        driver = Driver(loaded, folder, observer)
        manifest = driver.finished(verify_inputs=verify_inputs)
        if dry_run:
            tree = pipeline_tree(loaded, driver.prospect(), driver.out.url, driver.cache.url, driver.workers())
            console.print(tree)
            return
        if manifest is not None:
            say(console, f"manifest {manifest.hash[:16]}")
            return
        manifest = driver.run()
    print_summary(console, manifest, driver.out.url, time.perf_counter() - began)
    if demo and loaded.output.format == "arrow":
        say_next(console, driver.out.url)


@app.command()
def prep(
    config: Annotated[Path | None, typer.Argument(help="A YAML configuration.", show_default=False)] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write, .jsonl or .parquet.")
    ] = None,
    prompt_only: Annotated[bool, typer.Option("--prompt-only", help="Prompts alone, for test sets.")] = False,
    source: Annotated[str | None, typer.Option(help="Which source, when the configuration has several.")] = None,
    format: Format = None,
    input: Input = None,
    settings: Set = None,
) -> None:
    """Read sources and write examples in the prompt/completion form that other tools read. No tokenizer is needed."""
    from .configfile import load_config
    from .console import ConsoleObserver, make_console, say
    from .prepare import prepare_source

    if output is None:
        raise ConfigError("--output is needed: the file to write, such as examples.jsonl")
    if config is not None:
        if format is not None or input:
            raise ConfigError("give either a configuration file, or --format and --input; not both")
        loaded, base = load_config(config, None, settings or [])
    else:
        data = _without_file(format, input, Path("unused"), "unused")
        loaded, base = load_config(data, Path.cwd(), settings or [])
    chosen = [one for one in loaded.sources if source is None or one.name == source]
    if len(chosen) != 1:
        names = ", ".join(one.name for one in loaded.sources)
        raise ConfigError(f"--source: choose one of {names}")
    console = make_console()
    with ConsoleObserver(console) as observer:
        counts = prepare_source(chosen[0], base, output, prompt_only=prompt_only, observer=observer)
    say(console, f"{output}: {counts.examples:,} examples from {counts.rows:,} rows")
    for label, reasons in (
        ("rejected", counts.rejected), ("filtered", counts.filtered), ("never made", counts.skipped)
    ):  # fmt: skip
        for reason, number in sorted(reasons.items()):
            say(console, f"  {label}: {reason} {number:,}")
    for reject in counts.rejects:
        say(console, f"  {reject['file']}, line {reject['line']}: {reject['reason']}: {reject['detail']}")
    if (hidden := counts.rejected.total() - len(counts.rejects)) > 0:
        say(console, f"  and {hidden:,} rejected rows more")


app.command()(verify)
app.command()(repair)
app.command()(clean)


@app.command()
def inspect(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A finished dataset, or its URL.")],
    row: Annotated[int | None, typer.Option(help="Which packed row, from 0.", show_default="0")] = None,
    split: Annotated[str | None, typer.Option(help="Which split.", show_default="train")] = None,
    example: Annotated[
        str | None, typer.Option("--id", help="Follow one example through all stages, by its id.")
    ] = None,
    doc: Annotated[int | None, typer.Option(help="The same, by its doc id.")] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="The tokenizer's folder.", show_default="the one of the run")
    ] = None,
    ids: Annotated[bool, typer.Option("--ids", help="Of a row: show token by token, with ids.")] = False,
    width: Annotated[
        int | None, typer.Option(min=20, help="Of an example: columns.", show_default="the terminal's")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Of an example: shorten nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Of an example: print JSON.")] = False,
) -> None:
    """Show a packed row, or one example through all its stages: source, text, tokens, and its place in a row."""
    from .console import make_console, say
    from .inspect import load_decoder, show_row
    from .outfolder import tokenizer_folder
    from .reader import open_dataset

    if example is not None or doc is not None:
        if (example is not None and doc is not None) or row is not None or split is not None or ids:
            raise ConfigError("give one of --row (with --split and --ids), --id and --doc")
        _inspect_example(folder, example, doc, tokenizer, width, full=full, as_json=as_json)
        return
    if full or as_json or width is not None:
        raise ConfigError("--full, --width and --json are for one example; give --id or --doc as well")
    dataset = open_dataset(folder)
    place = tokenizer or tokenizer_folder(dataset.store)
    decoder = load_decoder(place) if place is not None else None
    console = make_console()
    if decoder is None:
        say(console, "the tokenizer of the run is not here; give its folder with --tokenizer. Ids instead of text:")
    show_row(console, dataset, row or 0, split or "train", decoder, ids)


def _inspect_example(
    folder: str,
    id: str | None,
    doc: int | None,
    tokenizer: Path | None,
    width: int | None,
    *,
    full: bool,
    as_json: bool,
) -> None:
    from .console import make_console
    from .follow import Follower
    from .reader import open_dataset
    from .show import Teller
    from .story import story_json

    follower = Follower(open_dataset(folder), tokenizer)
    story = follower.by_id(id) if id is not None else follower.by_number(doc or 0)
    if as_json:
        # In ASCII, so that nothing in data is a control character on its way; JSON leaves one of them as it is.
        print(json.dumps(story_json(story), indent=2, default=str).replace("\x7f", "\\u007f"))
        return
    console = make_console()
    if width is not None:
        console.width = width
    Teller(console, full=full).tell(story)


@app.command()
def loader(
    folders: Annotated[
        list[str], typer.Argument(metavar="DIR", help="Finished datasets, or their URLs; all are mixed.")
    ],
    steps: Annotated[int, typer.Option(min=1, help="How many batches to take.")] = 5,
    rows_per_step: Annotated[int, typer.Option(min=1, help="Rows of a step, over all ranks.")] = 8,
    start: Annotated[int, typer.Option(help="The step to begin with.")] = 0,
    rank: Annotated[int | None, typer.Option(help="As which rank.", show_default="from the environment")] = None,
    world_size: Annotated[int | None, typer.Option(help="Of how many.", show_default="from the environment")] = None,
    order: Annotated[str, typer.Option(help="sequential, full or blocks.")] = "full",
    seed: Annotated[int, typer.Option(help="Of the order.")] = 0,
    epochs: Annotated[int, typer.Option(help="How often everything is read.")] = 1,
    tail: Annotated[str, typer.Option(help="drop, pad or repeat.")] = "drop",
    split: Annotated[str, typer.Option(help="Which split.")] = "train",
    balance: Annotated[bool, typer.Option(help="Group rows by cost where that gains something.")] = True,
    static_shapes: Annotated[bool, typer.Option("--static-shapes", help="Batches of one shape.")] = False,
    cache: Annotated[Path | None, typer.Option(help="Where remote shards are kept.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="List the documents of the first step.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a trainer would get: batches, their fill and balance, and how fast they come."""
    from .console import make_console
    from .trainer_view import look, print_view

    view = look(
        folders,
        steps,
        start,
        explain,
        rows_per_step=rows_per_step,
        rank=0 if rank is None and world_size is not None else rank,
        world_size=world_size,
        order=order,
        seed=seed,
        epochs=epochs,
        tail=tail,
        balance="auto" if balance else None,
        static_shapes=static_shapes,
        cache=cache,
        **({"split": split} if len(folders) == 1 else {}),
    )
    if as_json:
        print(json.dumps(view.to_json(), indent=2))
    else:
        print_view(make_console(), view)


app.command("wait")(wait_command)
app.command()(train)
app.command()(probe)
app.command()(doctor)
app.command()(launch)


@app.command()
def schema() -> None:
    """Print the JSON Schema of the configuration, for editors."""
    from ..schemas.config import RunConfig

    print(json.dumps(RunConfig.model_json_schema(), indent=2))


def _version(value: bool) -> None:
    if value:
        from .. import __version__

        print(f"packtrain {__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Turns conversations, prompt-completion pairs and documents into packed training shards."""


def main() -> None:
    """Run a command; 0 is success, 2 a mistake of the person, 1 a failure, 130 an interruption."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # a scheduler's way of saying Ctrl-C
    try:
        code = app(with_seconds(sys.argv[1:]), prog_name="packtrain", standalone_mode=False)
        sys.stdout.flush()
    except PacktrainError as error:
        print(f"packtrain: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except _UsageError as error:
        error.show()
        sys.exit(error.exit_code)
    except typer.Exit as leave:
        sys.exit(leave.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    except BrokenPipeError:
        # Whoever read us has left, as `head` does; Python would complain again when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    # Without standalone mode, the code of a `typer.Exit`, or of an interruption, comes back as the result.
    if code == _INTERRUPTED:
        print("packtrain: interrupted; run the same command again to go on", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)


def _without_file(
    format: str | None, inputs: list[str] | None, tokenizer: Path | None, out: str | None
) -> dict[str, Any]:
    missing = [name for name, value in (("--input", inputs), ("--tokenizer", tokenizer), ("--out", out)) if not value]
    if missing:
        raise ConfigError(
            f"give a configuration file, or {', '.join(missing)} as well "
            "(--demo runs the embedded sample; packtrain schema prints what a configuration holds)"
        )
    return {
        "out": out,
        "tokenizer": {"path": str(tokenizer)},
        "sources": [{"name": _source_name(format), "format": format or "auto", "path": list(inputs or [])}],
    }


def _source_name(format: str | None) -> str:
    """What a source is called where nobody said it."""
    return "data" if format is None else format.rsplit(":", 1)[-1].strip("_") or "data"


def _demo(config: Path | None, out: str | None) -> tuple[dict[str, Any], Path]:
    import yaml

    from . import demo as home
    from .stores import beside, resolve_place

    if config is not None:
        raise ConfigError("--demo brings its own configuration; leave the file out")
    base = Path(home.__file__).parent
    data = yaml.safe_load((base / "demo.yaml").read_text(encoding="utf-8"))
    data["out"] = resolve_place(out or "runs/demo", Path.cwd())
    data["cache"] = beside(data["out"], ".packtrain-cache")
    return data, base


if __name__ == "__main__":  # python -m packtrain.pipeline.cli, as torchrun starts it
    main()
