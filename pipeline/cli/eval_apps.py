"""`packtrain eval-apps`: run programs against the tests of APPS problems, and give pass@k."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ...schemas.errors import ConfigError
from ...schemas.units import parse_size
from .arguments.options import Json, seconds_option
from .views.streams import print_json

if TYPE_CHECKING:
    from ..judge.judging import Judging

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
        Literal["exact", "tokens", "numbers", "tokens+numbers"],
        typer.Option(help="exact, tokens, numbers or tokens+numbers.", metavar="NAME"),
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
    unsafe: Annotated[
        bool, typer.Option("--unsafe", help="Run programs WITHOUT a sandbox, with all rights of this user.")
    ] = False,
    references: Annotated[
        bool, typer.Option("--references", help="Run the data's own solutions in place of samples, to calibrate.")
    ] = False,
    calibration: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The --out of such a run of the same data.")
    ] = None,
    compare: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The --out of another evaluation of the same data: do they differ?"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a model's programs against the tests of APPS problems, in a sandbox, and give pass@k by difficulty."""
    from ..judge.evaluation import EvaluationRequest, run_evaluation
    from ..judge.summary import lines
    from ..report.printing import say
    from .views.console import ConsoleObserver, make_console

    missing = [name for name, value in (("--data", data), ("--out", out)) if value is None]
    if data is None or out is None:
        raise ConfigError(f"give {' and '.join(missing)} as well: the APPS rows, and a folder for the results")
    if (samples is None) is not references:
        raise ConfigError("give a samples file, or --references to run the data's own programs; one of them")
    request = EvaluationRequest(
        data, out, samples, _judging(comparator, timeout, memory, all_tests), unsafe, jobs, _numbers(k), calibration,
        compare,
    )  # fmt: skip
    console = make_console(stderr=as_json)
    with ConsoleObserver(console) as observer:
        summary = run_evaluation(request, observer)
    if as_json:
        print_json(summary)
        return
    for line in lines(summary):
        say(console, line)
    say(console, f"{out}: results.jsonl has every sample, summary.json these numbers")


def _judging(comparator: str, timeout: float, memory: int, all_tests: bool) -> "Judging":
    from ...stages.judge.comparators import Comparator
    from ..judge.judging import Judging
    from ..judge.programs import ProgramLimits

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
