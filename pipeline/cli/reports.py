"""What to know of a dataset before and after it is packed: `plan`, `report`, `diff` and `contamination`."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from ...schemas.errors import ConfigError
from ...schemas.units import share
from .options import (
    Config,
    Folder,
    Format,
    Input,
    Json,
    Lengths,
    Mask,
    MaxLength,
    MaxLengthLimit,
    Model,
    Out,
    Output,
    Set,
    Tokenizer,
    Workers,
    check_page,
    load_run,
    no_words,
    report_options,
)  # fmt: skip
from .streams import print_json

if TYPE_CHECKING:
    from ...schemas.config.config import DecontaminateConfig, RunConfig
    from ...schemas.report import Report

_WORDS = 24
"""Words of a hit that the terminal shows."""


def plan(
    config: Config = None,
    settings: Set = None,
    rows: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Sample about N rows, spread evenly over all inputs, for an answer in seconds.",
            show_default="all",
        ),
    ] = None,
    output: Output = None,
    lengths: Lengths = None,
    max_length_limit: MaxLengthLimit = None,
    model: Model = None,
    out: Out = None,
    workers: Workers = None,
    format: Format = None,
    input: Input = None,
    tokenizer: Tokenizer = None,
    max_length: MaxLength = None,
    mask: Mask = None,
    as_json: Json = False,
) -> None:
    """Report what a run would do, and which length would fit the data, before anything is packed.

    Encodes into the cache, where the run finds the result, and stops; --rows encodes a sample only and keeps nothing.
    Writes OUT-plan.html and OUT-plan.json, or --output. With --json, it prints the numbers and writes files only with
    --output.
    """
    from ..report.files import write_beside
    from ..run.plan import plan as look_ahead
    from ..store.open import is_url, resolve_place
    from .console import ConsoleObserver, make_console

    check_page(output)
    options = report_options(lengths, max_length_limit, model)
    loaded, folder = load_run(
        config, settings, format, input, tokenizer, out, needs=("--input", "--tokenizer"), workers=workers,
        max_length=max_length, mask=mask,
    )  # fmt: skip
    with ConsoleObserver(make_console(stderr=as_json)) as observer:
        report = look_ahead(loaded, options, rows=rows, observer=observer, base=folder)
    place = resolve_place(loaded.out, folder)
    name = f"{place.rstrip('/').rpartition('/')[2] or 'packtrain'}-plan.html"
    beside = output or (Path.cwd() if is_url(place) else Path(place).parent) / name
    _show(report, as_json, (lambda: write_beside(report, beside)) if output is not None or not as_json else None)


def report(
    folder: Folder,
    output: Output = None,
    lengths: Lengths = None,
    max_length_limit: MaxLengthLimit = None,
    model: Model = None,
    as_json: Json = False,
) -> None:
    """Report what happened to the data, what is trained, how good the packing is, and which length would fit.

    Writes DIR/report.html and DIR/report.json, or --output. With --json, it prints the numbers and writes files only
    with --output.
    """
    from ..dataset.open import open_dataset
    from ..report.collect import report_of_dataset
    from ..report.files import write_beside, write_report

    check_page(output)
    options = report_options(lengths, max_length_limit, model)
    dataset = open_dataset(folder)
    made = report_of_dataset(dataset, options)
    if output is not None:
        _show(made, as_json, lambda: write_beside(made, output))
    else:
        _show(made, as_json, None if as_json else lambda: write_report(made, dataset.store))


def _show(report: "Report", as_json: bool, write: Callable[[], tuple[str, str]] | None) -> None:
    """Write the files of a report, if it is to have some, and print it."""
    from ..report.printing import say
    from ..report.sections import print_report
    from .console import make_console

    places = write() if write is not None else None
    if as_json:
        print_json(report)
        return
    console = make_console()
    print_report(console, report)
    say(console)
    for what, place in zip(("page", "numbers"), places or (), strict=False):
        say(console, f"{what}: {place}")


def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="A finished dataset, or its URL.", autocompletion=no_words)],
    b: Annotated[str, typer.Argument(metavar="B", help="Another one.", autocompletion=no_words)],
    everything: Annotated[bool, typer.Option("--all", help="Show all changes instead of about a screen.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Open no shard: compare examples by id and length only.")
    ] = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 unless the datasets are identical byte for byte.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare two datasets: settings, inputs, ledgers, rows, lengths and examples."""
    from ..report.diff import compare, print_difference
    from .console import ConsoleObserver, make_console

    console = make_console(stderr=as_json)
    with ConsoleObserver(console) as observer:
        found = compare(a, b, quick=quick, observer=observer)
    if as_json:
        print_json(found)
    else:
        print_difference(console, found, everything=everything)
    if exit_code and not found.identical:
        raise typer.Exit(1)


def contamination(
    config: Config = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="Evaluation files, as for --input. May be repeated.",
            show_default="the configuration's decontaminate.against",
            autocompletion=no_words,
        ),
    ] = None,
    ngram: Annotated[
        int | None, typer.Option(metavar="N", help="Words that must be shared in a row.", show_default="13")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE.jsonl", help="Write all hits to this file.")
    ] = None,
    format: Format = None,
    input: Input = None,
    settings: Set = None,
    as_json: Json = False,
) -> None:
    """Find training examples that share text with evaluation rows. No tokenizer is needed.

    With a configuration, what is found stays in its cache: a run with `decontaminate` finds it there.
    """
    from ..report.printing import print_grids, say
    from ..report.sections import overlap_section
    from ..run.contaminated import find_contamination
    from .console import ConsoleObserver, make_console

    console = make_console(stderr=as_json)
    with TemporaryDirectory(prefix="packtrain-contamination-") as temporary:
        loaded, base = load_run(config, settings, format, input, cache=temporary)
        section, named = _section(loaded, against, ngram)
        with ConsoleObserver(console) as observer:
            found = find_contamination(loaded, section, base, observer, hits=out, named=named)
    if as_json:
        print_json(found)
        return
    shown = overlap_section(found)
    say(console, shown.sentence)
    print_grids(console, [*shown.tables, *shown.more])
    for line in found.shown:
        words = line.shared.split(" ")
        shared = " ".join(words[:_WORDS]) + " …" * (len(words) > _WORDS)
        row = f"{line.evaluation}, line {line.evaluation_line:,}"
        say(console, f"{line.id} ~ {row}: {line.match}, {share(line.share)} of its {line.kind}: {shared}")
    if out is not None:
        say(console, f"all hits: {out}")
    elif found.examples:
        say(console, "--out hits.jsonl writes all hits, some with both texts", "dim")


def _section(config: "RunConfig", against: list[str] | None, ngram: int | None) -> "tuple[DecontaminateConfig, str]":
    """What to compare with, and what the user calls it.

    Raises:
        ConfigError: no evaluation file is named, or an option is out of range.
    """
    from ...schemas.config.config import DecontaminateConfig
    from ..configfile import load_as

    own = config.decontaminate
    if not against and own is None:
        raise ConfigError("--against is needed: the evaluation file to compare with, such as test.jsonl")
    asked = own.model_dump() if own is not None else {}
    if against:
        asked["against"] = [str(Path(one).absolute()) if "://" not in one else one for one in against]
    section, _ = load_as(DecontaminateConfig, asked, None, [f"ngram={ngram}"] if ngram is not None else [])
    return section, "--against" if against else "decontaminate.against"
