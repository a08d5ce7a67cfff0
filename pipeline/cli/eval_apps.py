"""`packtrain eval-apps`: run programs against the tests of APPS problems, and give pass@k."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...schemas.config.hints import did_you_mean
from ...schemas.errors import ConfigError
from ...schemas.units import parse_size
from .arguments import completion
from .arguments.options import Json, seconds_option
from .views.streams import print_json

if TYPE_CHECKING:
    from ..judge.judging import Judging

_COMPARATORS = ("exact", "tokens", "numbers", "tokens+numbers")
_SANDBOXES = ("auto", "bubblewrap", "sandlock")
_LONGEST = 3600.0
_LEAST_MEMORY = 64 << 20


def _size(text: str) -> int:
    try:
        return parse_size(str(text))  # typer passes a default as a number
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def eval_apps(
    samples: Annotated[
        Path | None,
        typer.Argument(
            metavar="SAMPLES",
            help="What `packtrain sample` wrote, or JSON lines with id, row, sample and text.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="APPS rows with their tests: the data that the samples were made from.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Folder for results; the same command continues there.",
            show_default=False,
            metavar="DIR",
        ),
    ] = None,
    k: Annotated[
        str | None, typer.Option("-k", metavar="K,K,…", help="The k of pass@k.", show_default="1,5,10 up to n")
    ] = None,
    comparator: Annotated[
        str,
        typer.Option(
            help="exact, tokens, numbers or tokens+numbers.", autocompletion=completion.comparator, metavar="NAME"
        ),
    ] = "tokens+numbers",
    timeout: Annotated[
        float, seconds_option("CPU time of one test; twice as much by the clock.", "--timeout", default="10s")
    ] = 10.0,
    memory: Annotated[
        int, typer.Option(parser=_size, metavar="SIZE", help="Memory of a program.", show_default="1GiB")
    ] = 1 << 30,
    all_tests: Annotated[
        bool, typer.Option("--all-tests", help="Run the tests after the first that fails, too.")
    ] = False,
    jobs: Annotated[int | None, typer.Option(min=1, help="Programs at once.", show_default="one per core")] = None,
    sandbox: Annotated[
        str, typer.Option(help="auto, bubblewrap or sandlock.", autocompletion=completion.sandbox, metavar="NAME")
    ] = "auto",
    unsafe: Annotated[
        bool, typer.Option("--unsafe", help="Run programs WITHOUT a sandbox, with all rights of this user.")
    ] = False,
    calibrate: Annotated[
        bool,
        typer.Option("--calibrate", help="Run the data's own solutions, and keep apart problems where none passes."),
    ] = False,
    calibration: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A finished calibration of the same data.")
    ] = None,
    compare: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A finished evaluation of the same data: is the difference chance?"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a model's programs against the tests of APPS problems, in a sandbox, and give pass@k by difficulty."""
    from ..judge.driver import EvaluationRequest, run_evaluation
    from ..judge.sections import sections
    from ..judge.summary import scores_json
    from ..report.draw.printing import print_section, say
    from .views.console import ConsoleObserver, make_console

    missing = [name for name, value in (("--data", data), ("--out", out)) if value is None]
    if data is None or out is None:
        raise ConfigError(f"give {' and '.join(missing)} as well: the APPS rows, and a folder for the results")
    if sandbox == "unsafe":
        raise ConfigError("--sandbox unsafe: to run programs without a sandbox, type --unsafe instead")
    for option, value, values in (("comparator", comparator, _COMPARATORS), ("sandbox", sandbox, _SANDBOXES)):
        if value not in values:
            raise ConfigError(f"--{option} {value}: choose one of {', '.join(values)}{did_you_mean(value, values)}")
    if unsafe and sandbox != "auto":
        raise ConfigError("--unsafe runs programs without a sandbox; leave --sandbox out, or --unsafe")
    request = EvaluationRequest(
        data, out, samples, _judging(comparator, timeout, memory, all_tests),
        "unsafe" if unsafe else sandbox, jobs, _numbers(k), calibrate, calibration, compare,
    )  # fmt: skip
    console = make_console(stderr=as_json)
    with ConsoleObserver(console) as observer:
        summary = run_evaluation(request, observer)
    if as_json:
        print_json(scores_json(summary))
        return
    for section in sections(replace(summary, notes=()))[:-1]:  # the notes were printed at the beginning
        print_section(console, section, wrap=True)
    say(console)
    say(console, f"{out / 'page.html'} shows it with programs that fail; results.jsonl beside it has every sample")


def _judging(comparator: str, timeout: float, memory: int, all_tests: bool) -> "Judging":
    from ...stages.judge.comparators import Comparator
    from ..judge.judging import Judging
    from ..judge.sandbox.programs import ProgramLimits

    if not 0 < timeout <= _LONGEST:
        raise ConfigError(f"--timeout: give more than 0 and at most {_LONGEST:,} seconds")
    if not _LEAST_MEMORY <= memory < 1 << 48:
        raise ConfigError("--memory: give at least 64MiB, which Python needs itself")
    limits = ProgramLimits(wall_seconds=2 * timeout, cpu_seconds=timeout, memory_bytes=memory)
    return Judging(Comparator(comparator), limits, all_tests)


def _numbers(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(one) for one in text.split(","))
    except ValueError:
        shown = text if len(text) <= 80 else f"{text[:80]}…"
        raise ConfigError(f"-k {shown}: give whole numbers, such as 1,5,10") from None
