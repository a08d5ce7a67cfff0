"""`packtrain prep`: write a source's examples in a form that other tools read."""

from pathlib import Path
from typing import Annotated

import typer

from ...schemas.errors import ConfigError, did_you_mean
from ...schemas.escape import escape_line
from ...schemas.units import plural
from .arguments.options import Config, Format, Input, Json, Set, without_file
from .views.streams import print_json


def prep(
    config: Config = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", "--out", help="The file to write: .jsonl or .parquet.")
    ] = None,
    prompt_only: Annotated[bool, typer.Option("--prompt-only", help="Write prompts only, for test sets.")] = False,
    source: Annotated[str | None, typer.Option(help="Which source, if the configuration has several.")] = None,
    format: Format = None,
    input: Input = None,
    settings: Set = None,
    as_json: Json = False,
) -> None:
    """Read sources and write examples in the prompt/completion form that other tools read. No tokenizer is needed."""
    from ..configfile import load_config
    from ..report.printing import say
    from ..run.prep_only import prepare_source
    from .views.console import ConsoleObserver, make_console

    if output is None and (config is not None or input):
        raise ConfigError("--output is needed: the file to write, such as examples.jsonl")
    if config is not None:
        if format is not None or input:
            raise ConfigError("give either a configuration file, or --format and --input; not both")
        loaded, base = load_config(config, None, settings or [])
    else:
        data = without_file(format, input, Path("unused"), "unused", output=output)
        loaded, base = load_config(data, Path.cwd(), settings or [])
    assert output is not None
    chosen = [one for one in loaded.sources if source is None or one.name == source]
    if len(chosen) != 1:
        names = [one.name for one in loaded.sources]
        raise ConfigError(f"--source: choose one of {', '.join(names)}{did_you_mean(source or '', names)}")
    console = make_console(stderr=as_json)
    with ConsoleObserver(console) as observer:
        counts = prepare_source(chosen[0], base, output, prompt_only=prompt_only, observer=observer)
    if as_json:
        by_reason = {"rejected": counts.rejected, "filtered": counts.filtered, "skipped": counts.skipped}
        numbers = {name: dict(sorted(found.items())) for name, found in by_reason.items()}
        print_json({"output": str(output), "rows": counts.rows, "examples": counts.examples, **numbers,
                    "rejects": counts.rejects})  # fmt: skip
        return
    say(console, f"{output}: {plural(counts.examples, 'example')} from {plural(counts.rows, 'row')}")
    for label, reasons in (
        ("rejected", counts.rejected), ("filtered", counts.filtered), ("never made", counts.skipped)
    ):  # fmt: skip
        for reason, number in sorted(reasons.items()):
            say(console, f"  {label}: {reason} {number:,}")
    for reject in counts.rejects:
        where = f"{reject['file']}, line {reject['line']}: {reject['reason']}: {reject['detail']}"
        say(console, f"  {escape_line(where)}")
    if (hidden := counts.rejected.total() - len(counts.rejects)) > 0:
        say(console, f"  and {hidden:,} more rejected rows")
