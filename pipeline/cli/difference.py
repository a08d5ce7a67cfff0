"""A diff in the terminal: a table for each section, and the examples that differ."""

import shlex
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...schemas.escape import escape, escape_line
from ...schemas.units import exact, share
from ..report.diff import KINDS, SHARES, Change, Difference, Examples, NamedExample

MOST = 8
"""Lines of a section that are printed, unless all are."""
FIRST = 3
"""Examples of a kind that are named, unless all are."""
LONGEST = 60
"""Characters of a value that are printed."""


def print_difference(console: Console, found: Difference, *, everything: bool) -> None:
    """Print what differs.

    Args:
        everything: print all changes, not about a screen.
    """
    if found.identical:
        _say(console, f"A and B are the same dataset, byte for byte: manifest {found.manifests[0][:16]}")
        return
    for side, where, manifest in zip("AB", (found.a, found.b), found.manifests, strict=True):
        _say(console, f"{side}: {where}, manifest {manifest[:16]}")
    if found.same_rows:
        _say(console, "The rows of A and B are identical.")
    left = 0
    for section in dict.fromkeys(change.section for change in found.changes):
        changes = [change for change in found.changes if change.section == section]
        shown = changes if everything else changes[:MOST]
        left += len(changes) - len(shown)
        _print_section(console, section, shown)
    if found.examples is not None:
        _print_examples(console, found, found.examples, None if everything else FIRST)
    if left:
        _say(console, f"\n{exact(left)} more lines differ; --all shows them")


def _say(console: Console, line: str) -> None:
    """Print text without wrapping, so that a command can be copied."""
    console.print(Text(escape(line)), soft_wrap=True)


def _print_section(console: Console, section: str, changes: Sequence[Change]) -> None:
    table = Table(show_edge=False, pad_edge=False)
    table.add_column(section, overflow="fold")
    for name in ("A", "B", "change"):
        table.add_column(name, justify="right", overflow="fold")
    for one in changes:
        part = one.section == "rows" and one.key.rpartition(".")[2] in SHARES
        cells = [one.key, _value(one.a, part), _value(one.b, part), _change(one.a, one.b, part)]
        table.add_row(*(Text(escape_line(cell)) for cell in cells))
    console.print()
    console.print(table)


def _value(value: Any, part: bool) -> str:
    if value is None:
        return "–"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return share(value, 2) if part else exact(value) if isinstance(value, int) else f"{value:,.6g}"
    text = str(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _change(a: Any, b: Any, part: bool) -> str:
    """Write the change of a number as `▲ +53 (+378.6 %)`, of a share in percentage points; nothing for other values."""
    a, b = (0 if one is None else one for one in (a, b))
    if part or not all(isinstance(one, int | float) and not isinstance(one, bool) for one in (a, b)):
        return f"{'▲ +' if b > a else '▼ −'}{100 * abs(b - a):.2f} points" if part else ""
    size = f"{'▲ +' if b > a else '▼ −'}{exact(abs(b - a))}"
    return f"{size} ({'+' if b > a else '−'}{share(abs(b - a) / a)})" if a and b else size


def _print_examples(console: Console, found: Difference, examples: Examples, most: int | None) -> None:
    rows_read = examples.alike is not None
    _say(console, f"\n{exact(examples.same)} examples are {'the same' if rows_read else 'of the same length'} in both")
    for kind, named in examples.named.items():
        words = KINDS[kind] if rows_read or kind != "tokens" else "in both, of another length"
        shown = named[:most]
        more = examples.counts[kind] - len(shown)
        listed = ", ".join(map(_example, shown)) + (f", and {exact(more)} more" if more else "")
        _say(console, f"  {exact(examples.counts[kind])} {words}: {listed}")
    if examples.alike is not None and examples.alike > examples.same + examples.counts["labels"]:
        _say(console, f"  {exact(examples.alike)} have the same tokens in both, whatever their ids")
    for kind, where, side in (("only_a", found.b, "B"), ("only_b", found.a, "A")):
        if (name := _of_both_inputs(found, examples.named.get(kind, []))) is not None:
            _say(console, f"packtrain inspect {shlex.quote(where)} --id {shlex.quote(name)} says why {side} lacks it")


def _example(one: NamedExample) -> str:
    tokens = list(dict.fromkeys(exact(each) for each in (one.tokens_a, one.tokens_b) if each is not None))
    return f"{escape_line(one.id)} ({' → '.join(tokens)} tokens)"


def _of_both_inputs(found: Difference, named: Sequence[NamedExample]) -> str | None:
    """Return the first example whose file both datasets have read, so that the one without it can say why."""
    changed = {change.key for change in found.changes if change.section == "inputs"}
    return next((one.id for one in named if one.id.rpartition(":")[0] not in changed), None)
