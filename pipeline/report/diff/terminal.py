"""A diff in the terminal: the most important changes on one screen, or all changes."""

import shlex
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console

from ....schemas.units import exact
from ..draw.blocks import Block, Grid, Words
from ..draw.markup import clipped
from ..draw.printing import print_blocks, print_section
from .change_words import change_of, figure, signed
from .changes import ALL, Comparison, ExamplesChange, LedgerLine, Measure, ShownExample
from .sections import (
    has_several,
    inputs_grid,
    kind_title,
    ledger_grid,
    length_rows,
    sections,
    settings_grid,
    sides_grid,
)

_SETTINGS = 6
_INPUTS = 3
_LEDGER = 6
_PACKING = 4
_SOURCES = 4
_NAMED = 3
_NAME = 40
"""Maximum number of characters of a name in a sentence."""
_ELSEWHERE = ("bytes_read", "tokens_packed", "labels_trained", "labels_head", "labels_not_asked", "asked_encoded",
              "asked_repeated", "asked_truncated", "asked_dropped", "turns_trained", "turns_without_end",
              "straddles", "boundaries")  # fmt: skip
"""Ledger fields that the first table already shows, or that follow from others."""
_FIGURES = ("fill", "gap to the bound", "trained share")
"""Figures of a split that the first table does not show."""


def print_comparison(console: Console, found: Comparison, *, full: bool = False) -> None:
    """Print all changes.

    Args:
        full: include what did not change, and all named examples.
    """
    print_blocks(console, [Words(found.sentence, style="bold"), Words(""), replace(sides_grid(found), caption="")])
    if found.identical and not full:
        return
    for section in sections(found, full=full)[1:]:
        if section.blocks or full or section.name in ("lengths", "examples"):
            print_section(console, section, wrap=False)
    if found.examples is not None:
        hints = inspect_hints(found, found.examples)
        print_blocks(console, [block for hint in hints for block in (Words(""), Words(hint))])


def print_brief(console: Console, found: Comparison, *, page: str = "--output diff.html writes it as a page") -> None:
    """Print the most important changes, and count the rest.

    Args:
        page: the last sentence, about the page.
    """
    sides = sides_grid(found)
    rows = [row for row in sides.rows if row[-1] != "=" or row[0] not in ("shards", "bytes")]
    print_blocks(console, [Words(found.sentence, style="bold"), Words(""), replace(sides, caption="", rows=rows)])
    if found.identical:
        print_blocks(console, [Words(""), Words(page)])
        return
    left, blocks = 0, list[Block]()
    for part in (_settings(found), _inputs(found), _ledger(found), _packing(found)):
        left += part[0]
        blocks += part[1]
    if found.lengths is not None:
        blocks += [Words(""), Words(found.lengths.sentence)]
        left += sum(row[-1] != "=" for row in length_rows(found.lengths))
    if found.examples is not None:
        blocks += _examples(found.examples)
        blocks += map(Words, inspect_hints(found, found.examples)[:1])
    lines = f"{exact(left)} more changed {'line' if left == 1 else 'lines'}"
    more = f"and {lines}: --all shows them; " if left else ""
    print_blocks(console, [*blocks, Words(""), Words(f"{more}{page}")])


def _settings(found: Comparison) -> tuple[int, list[Block]]:
    real = [one for one in found.settings if not one.spelling]
    if real:
        return max(len(real) - _SETTINGS, 0), [Words(""), settings_grid("Settings", real[:_SETTINGS])]
    said = "The configurations are written differently but mean the same; --full shows where."
    return 0, [Words(""), Words(said)] if found.settings else []


def _inputs(found: Comparison) -> tuple[int, list[Block]]:
    shown = found.inputs.changes[:_INPUTS]
    if not shown:
        return 0, []
    return sum(found.inputs.counts.values()) - len(shown), [Words(""), inputs_grid("Inputs", shown)]


def _ledger(found: Comparison) -> tuple[int, list[Block]]:
    changed = [line for line in found.ledger if line.change]
    several = has_several(found)
    mine = [line for line in changed if line.name not in _ELSEWHERE and (not several or line.source == ALL)]
    kept = sorted(mine, key=lambda line: -abs(line.change) / max(line.a, line.b))[:_LEDGER]
    shown = [line for line in mine if line in kept]
    blocks: list[Block] = [Words(""), ledger_grid("Ledger", shown, several=False)] if shown else []
    if several and (words := _by_source([line for line in changed if line.name == "tokens_packed"])):
        blocks.append(Words(f"tokens packed, by source: {words}"))
    return len(changed) - len(shown), blocks


def _by_source(lines: Sequence[LedgerLine]) -> str:
    """Name the sources that changed most."""
    apart = sorted((line for line in lines if line.source != ALL), key=lambda line: -abs(line.change))
    named = [f"{clipped(line.source, _NAME)} {signed(line.a, line.b)}" for line in apart[:_SOURCES]]
    more = len(apart) - len(named)
    return ", ".join(named) + (f", and {exact(more)} more" if more else "")


def _packing(found: Comparison) -> tuple[int, list[Block]]:
    changed = [one for one in found.packing if one.a != one.b]
    named = [one for one in changed if one.name in _FIGURES and figure(one.a, one.unit) != figure(one.b, one.unit)]
    named = sorted(named, key=lambda one: one.name not in ("fill", "trained share"))[:_PACKING]
    shown = [one for one in changed if one in named]
    splits = len({one.split for one in found.packing}) > 1
    rows = [[_measure(one, splits), figure(one.a, one.unit), figure(one.b, one.unit), change_of(one)] for one in shown]
    grid = Grid("Packing", ("", "A", "B", "change"), rows)
    return len(changed) - len(shown), [Words(""), grid] if shown else []


def _measure(one: Measure, splits: bool) -> str:
    return f"{one.name} of {one.split}" if splits else one.name


def _examples(found: ExamplesChange) -> list[Block]:
    """Print the sentence on examples, and a line for each kind of difference."""
    blocks: list[Block] = [Words(found.sentence)]
    for kind, examples in found.shown.items():
        number = sum(getattr(one, kind) for one in found.sources[:1])
        named = ", ".join(map(_example, examples[:_NAMED]))
        more = number - min(len(examples), _NAMED)
        blocks.append(Words(f"  {kind_title(kind, found)}: {named}{f', and {exact(more)} more' if more > 0 else ''}"))
    return blocks


def _example(one: ShownExample) -> str:
    a, b = one.tokens_a, one.tokens_b
    if a is not None and b is not None and a != b:
        return f"{one.id} ({exact(a)} → {exact(b)} tokens)"
    tokens = a if a is not None else b
    name = one.id
    return name if tokens is None else f"{name} ({exact(tokens)} tokens)"


def inspect_hints(found: Comparison, examples: ExamplesChange) -> list[str]:
    """Print commands that explain why an example is missing from one dataset although both read its source's files."""
    other = {one.source for one in found.inputs.changes}
    hints = []
    for kind, side, lacks in (("only_a", found.b, "B"), ("only_b", found.a, "A")):
        shown = examples.shown.get(kind, [])
        here = [one for one in shown if one.source in side.sources and one.source not in other]
        if here:
            command = f"packtrain inspect {shlex.quote(side.where)} --id {shlex.quote(here[0].id)}"
            hints.append(f"{command} says why {lacks} lacks it")
    return hints
