"""`packtrain probe` in the terminal: the checks as a table, and what to do about a leak."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..schemas.errors import AttentionError, ConfigError
from .cli_options import print_json
from .completion import ATTENTION, DEVICES
from .console import make_console, say

if TYPE_CHECKING:
    from ..training.attention.apply import Applied
    from ..training.probe.report import ProbeReport


def show_probe(
    model: Path,
    attention: str,
    dtype: str | None,
    device: str | None,
    *,
    random: bool,
    tiny: bool,
    data: Path | None,
    as_json: bool,
) -> bool:
    """Probe a model and print what was found.

    Returns:
        Whether the path that the trainer would use keeps packed documents apart.

    Raises:
        ConfigError: torch or transformers is missing, or there is no model.
    """
    try:
        from ..training.probe.command import probe_model
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the probe needs {error.name}, which is not installed; pip install 'packtrain[train]'"
        ) from None
    console = make_console()
    if attention not in ATTENTION:
        raise ConfigError(f"--attention {attention}: choose one of {', '.join(ATTENTION)}")
    if device is not None and not device.startswith(DEVICES):
        raise ConfigError(f"--device {device}: choose one of {', '.join(DEVICES)}, such as cuda:0")
    try:
        report, applied, made = probe_model(
            model, attention=attention, dtype=dtype, device=device, random=random, tiny=tiny, data=data
        )
    except AttentionError as error:  # the model was found, and cannot be trained packed: that is an answer
        if as_json:
            print_json({"model": str(model), "isolated": False, "reason": str(error)})
        else:
            say(console, f"NOT isolated: {error}")
        return False
    if as_json:
        print_json({**report.to_json(), "applied": _plain(applied), "made": made})
    else:
        print_report(console, report, applied, made)
    return report.isolated


def print_report(console: Console, report: "ProbeReport", applied: "Applied", made: str) -> None:
    """The table, and a last line that says it all."""
    say(console, f"{report.model}, {made}")
    attends = report.check("attention") is not None
    if attends:
        say(console, f"attention {applied.name}: {applied.kernel}; {applied.reason}", "dim")
    else:
        say(console, "no layer of it has attention that packtrain can set", "dim")
    if attends and applied.cost:
        say(console, f"its cost: {applied.cost}", "dim")
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
    if report.isolated:
        return
    say(console, f"  at fault: {report.fault or 'unknown'}")
    say(console, f"  mend:     {report.mend or 'set batching: padded, or take another model'}")


def _plain(applied: "Applied") -> dict[str, str]:
    return {"name": applied.name, "kernel": applied.kernel, "reason": applied.reason, "cost": applied.cost}
