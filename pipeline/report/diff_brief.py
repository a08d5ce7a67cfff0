"""A diff on one screen: what was asked for otherwise, what that did, and how much more there is to see."""

from collections.abc import Sequence

from rich.console import Console

from .change_words import change_of, figure, signed
from .changes import ALL, Comparison, ExamplesChange, LedgerLine, Measure, ShownExample
from .diff_terminal import (
    input_row,
    inspect_hints,
    kind_title,
    length_rows,
    say,
    setting_row,
    show_table,
    sides_rows,
    table_of,
)
from .markup import clipped
from .spoken import count

LINES = 60
"""That it has at most, whatever changed; a usual one has 40."""
_SETTINGS = 6
_INPUTS = 3
_LEDGER = 6
_PACKING = 4
_SOURCES = 4
_NAMED = 3
_NAME = 40
"""Characters of a name in a sentence."""
_ELSEWHERE = ("bytes_read", "tokens_packed", "labels_trained", "labels_head", "labels_not_asked", "asked_encoded",
              "asked_repeated", "asked_truncated", "asked_dropped", "turns_trained", "turns_without_end",
              "straddles", "boundaries")  # fmt: skip
"""Fields of the ledger that the first table tells, or that follow from others."""
_FIGURES = ("fill", "gap to the bound", "trained share")
"""Of a split, what the first table does not tell."""


def print_brief(console: Console, found: Comparison, *, page: str = "--output diff.html makes a page of it") -> None:
    """Print what matters, and count the rest.

    Args:
        page: what is said of the page, at the end.
    """
    say(console, found.sentence, "bold")
    rows = [row for row in sides_rows(found) if row[-1] != "=" or row[0] not in ("shards", "bytes")]
    show_table(console, table_of("", ("", "A", "B", "change"), rows, words=1))
    if found.identical:
        say(console)
        say(console, page)
        return
    left = _settings(console, found) + _inputs(console, found) + _ledger(console, found) + _packing(console, found)
    if found.lengths is not None:
        say(console)
        say(console, found.lengths.sentence)
        left += sum(row[-1] != "=" for row in length_rows(found.lengths))
    if found.examples is not None:
        _examples(console, found.examples)
        for hint in inspect_hints(found, found.examples)[:1]:
            say(console, hint)
    say(console)
    more = f"and {count(left)} more {'line' if left == 1 else 'lines'} that changed: --all shows them; " if left else ""
    say(console, f"{more}{page}")


def _settings(console: Console, found: Comparison) -> int:
    real = [one for one in found.settings if not one.spelling]
    if real:
        rows = [setting_row(one) for one in real[:_SETTINGS]]
        show_table(console, table_of("What was asked for", ("", "A", "B"), rows, words=3))
    elif found.settings:
        say(console)
        say(console, "The configurations say the same in other words; --full shows where.")
    return max(len(real) - _SETTINGS, 0)


def _inputs(console: Console, found: Comparison) -> int:
    changes = found.inputs.changes
    if not changes:
        return 0
    rows = map(input_row, changes[:_INPUTS])
    show_table(console, table_of("Inputs", ("source", "file", "what", "A", "B"), rows, words=3))
    return sum(found.inputs.counts.values()) - min(len(changes), _INPUTS)


def _ledger(console: Console, found: Comparison) -> int:
    changed = [line for line in found.ledger if line.change]
    several = len({line.source for line in found.ledger}) > 1
    mine = [line for line in changed if line.name not in _ELSEWHERE and (not several or line.source == ALL)]
    kept = sorted(mine, key=lambda line: -abs(line.change) / max(line.a, line.b))[:_LEDGER]
    shown = [line for line in mine if line in kept]
    if shown:
        rows = [[line.label, count(line.a), count(line.b), signed(line.a, line.b)] for line in shown]
        show_table(console, table_of("Ledger", ("", "A", "B", "change"), rows, words=1))
    if several and (words := _by_source([line for line in changed if line.name == "tokens_packed"])):
        say(console, f"tokens packed, by source: {words}")
    return len(changed) - len(shown)


def _by_source(lines: Sequence[LedgerLine]) -> str:
    """The sources that changed most."""
    apart = sorted((line for line in lines if line.source != ALL), key=lambda line: -abs(line.change))
    told = [f"{clipped(line.source, _NAME)} {signed(line.a, line.b)}" for line in apart[:_SOURCES]]
    more = len(apart) - len(told)
    return ", ".join(told) + (f", and {count(more)} more" if more else "")


def _packing(console: Console, found: Comparison) -> int:
    changed = [one for one in found.packing if one.a != one.b]
    told = [one for one in changed if one.name in _FIGURES and figure(one.a, one.unit) != figure(one.b, one.unit)]
    told = sorted(told, key=lambda one: one.name not in ("fill", "trained share"))[:_PACKING]
    shown = [one for one in changed if one in told]
    if shown:
        splits = len({one.split for one in found.packing}) > 1
        rows = [
            [_measure(one, splits), figure(one.a, one.unit), figure(one.b, one.unit), change_of(one)] for one in shown
        ]
        show_table(console, table_of("Packing", ("", "A", "B", "change"), rows, words=1))
    return len(changed) - len(shown)


def _measure(one: Measure, splits: bool) -> str:
    return f"{one.name} of {one.split}" if splits else one.name


def _examples(console: Console, found: ExamplesChange) -> None:
    """A sentence, and a line for each kind."""
    say(console, found.sentence)
    for kind, examples in found.shown.items():
        number = sum(getattr(one, kind) for one in found.sources[:1])
        named = ", ".join(map(_example, examples[:_NAMED]))
        more = number - min(len(examples), _NAMED)
        say(console, f"  {kind_title(kind, found)}: {named}{f', and {count(more)} more' if more > 0 else ''}")


def _example(one: ShownExample) -> str:
    a, b = one.tokens_a, one.tokens_b
    if a is not None and b is not None and a != b:
        return f"{one.id} ({count(a)} → {count(b)} tokens)"
    tokens = a if a is not None else b
    name = one.id
    return name if tokens is None else f"{name} ({count(tokens)} tokens)"
