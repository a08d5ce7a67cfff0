"""`packtrain probe`: the isolation checks as a table, and what to do about a leak."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ...schemas.errors import AttentionError, ConfigError
from .arguments import completion
from .arguments.options import Json
from .views.streams import print_json

if TYPE_CHECKING:
    from rich.console import Console

    from ...training.attention import Applied
    from ...training.probe import ProbeReport


def probe(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model's folder: its config.json is enough.")],
    attention: Annotated[
        Literal["auto", "packed_varlen", "flash_attention_2", "sdpa", "eager"], typer.Option(help="Which attention.")
    ] = "auto",
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        typer.Option(help="In which precision.", show_default="bfloat16 on CUDA, else float32"),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="cpu or cuda.", show_default="CUDA if available", autocompletion=completion.device),
    ] = None,
    random: Annotated[
        bool, typer.Option("--random", help="Use random weights, even if the folder has weights.")
    ] = False,
    tiny: Annotated[bool, typer.Option("--tiny", help="Use a tiny model of the same architecture.")] = False,
    data: Annotated[
        Path | None,
        typer.Option(help="A packed dataset: also probe with documents as long as its longest.", metavar="PACKED"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Find out whether a model keeps packed documents apart. Exit code 0 if and only if it does."""
    from ..report.printing import say
    from .views.console import make_console

    try:
        from ...training.probe_command import probe_model
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the probe needs {error.name}, which is not installed; pip install 'packtrain[train]'"
        ) from None
    console = make_console()
    try:
        report, applied, made = probe_model(
            model, attention=attention, dtype=dtype, device=device, random=random, tiny=tiny, data=data
        )
    except AttentionError as error:  # the model cannot be trained packed: a result, not a failure of the command
        if as_json:
            print_json({"model": str(model), "isolated": False, "reason": str(error)})
        else:
            say(console, f"NOT isolated: {error}")
        raise typer.Exit(1) from None
    if as_json:
        print_json({**report.to_json(), "applied": asdict(applied), "made": made})
    else:
        _print_report(console, report, applied, made)
    if not report.isolated:
        raise typer.Exit(1)


def _print_report(console: "Console", report: "ProbeReport", applied: "Applied", made: str) -> None:
    """The table of checks, then the verdict and what to do."""
    from rich.table import Table
    from rich.text import Text

    from ..report.printing import say

    say(console, f"{report.model}, {made}")
    say(console, f"attention {applied.name}: {applied.kernel}; {applied.reason}", "dim")
    say(console)
    table = Table(show_edge=False, pad_edge=False)
    for name in ("check", "", "found", "should be", ""):
        table.add_column(name, overflow="fold")
    for name, passed, value, threshold, detail in report.rows():
        mark = Text(passed, "green" if passed == "ok" else "bold red")
        table.add_row(name, mark, Text(value), Text(threshold), Text(detail, "dim"))
    console.print(table)
    say(console)
    say(console, report.verdict)
    if report.hint:
        say(console, f"  fix: {report.hint}")
