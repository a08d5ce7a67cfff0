"""Markdown tables of what was measured."""

import os
import platform
import statistics
from collections.abc import Sequence
from datetime import date
from importlib.metadata import version


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median, and the range where there are several."""
    text = f"{statistics.median(values):.{digits}f}"
    return f"{text} ({min(values):.{digits}f}–{max(values):.{digits}f})" if len(values) > 1 else text


def print_table(title: str, packages: Sequence[str], header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """What was measured, where, when, with what, how busy the machine is, and the table."""
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    cores, load = len(os.sched_getaffinity(0)), " ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"### {title}\n")
    print(f"{date.today().isoformat()}; {cores} cores; Python {platform.python_version()}; {versions}; load {load}.\n")
    for row in [header, ["--"] + ["--:"] * (len(header) - 1), *rows]:
        print(f"| {' | '.join(row)} |")
    print(flush=True)
