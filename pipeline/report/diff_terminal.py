"""A diff in the terminal, all of it: what changed first, each change with a sign. `diff_brief` has it on a screen."""

import shlex
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...schemas.escape import escape_line
from ..console import say as say_as_it_is
from ..units import size
from .change_words import change_of, figure, relative, rows_word, signed, value_of
from .changes import ALL, Comparison, ExamplesChange, InputChange, LengthsChange, Setting, ShownExample
from .charts_base import QUANTILES
from .spoken import count

NAMED = 5
"""Examples of a kind, and input files, that are named unless all are asked for."""
MOST_SOURCES = 4
"""Sources up to which each has its lines of the ledger, unless all are asked for."""
KINDS = {
    "only_a": "only in A",
    "only_b": "only in B",
    "tokens": "in both, with other tokens",
    "labels": "in both, with other tokens trained",
    "copies": "in both, packed another number of times",
    "moved": "in both, in another split",
}
"""What each kind of `ExamplesChange.shown` is called."""


def print_comparison(console: Console, found: Comparison, *, full: bool = False) -> None:
    """Print a diff.

    Args:
        full: what did not change, too, and every example that is named.
    """
    say(console, found.sentence, "bold")
    show_table(console, _sides(found))
    if found.identical and not full:
        return
    listed = [one for one in found.settings if full or not one.spelling]
    if listed:
        rows = [setting_row(one) for one in listed]
        show_table(console, table_of("What was asked for", ("", "A", "B"), rows, words=3))
    elif found.settings:
        say(console)
        say(console, "The configurations say the same in other words; --full shows where.")
    _inputs(console, found, full)
    names = {line.source for line in found.ledger}
    several, brief = len(names) > 1, len(names) > MOST_SOURCES + 1 and not full
    ledger = [line for line in found.ledger if full or (line.change and (not brief or line.source == ALL))]
    rows = [
        [*([line.source] if several else []), line.label, count(line.a), count(line.b), signed(line.a, line.b)]
        for line in ledger
    ]
    if rows:
        head = (*(["source"] if several else []), "", "A", "B", "change")
        show_table(console, table_of("Ledger", head, rows, words=2 if several else 1))
        if brief:
            say(console, "of all sources together; --full shows each of them")
    packing = [one for one in found.packing if full or one.a != one.b]
    if packing:
        rows = [
            [one.split, one.name, figure(one.a, one.unit), figure(one.b, one.unit), change_of(one)] for one in packing
        ]
        show_table(console, table_of("Packing", ("split", "", "A", "B", "change"), rows, words=2))
    if found.lengths is not None:
        say(console)
        say(console, found.lengths.sentence, "bold")
        if full or found.lengths.a != found.lengths.b:
            show_table(console, _lengths(found.lengths))
            say(console, found.lengths.what)
    if found.examples is not None:
        _examples(console, found.examples, full)
        for hint in inspect_hints(found, found.examples):
            say(console)
            say(console, hint)


def say(console: Console, text: str = "", style: str = "") -> None:
    """Print a line, made harmless."""
    say_as_it_is(console, escape_line(text), style)


def table_of(title: str, head: Sequence[str], rows: Iterable[Sequence[str]], *, words: int) -> Table:
    """A table whose first `words` columns are text. All cells are made harmless."""
    table = Table(title=Text(title, style="table.title"), title_justify="left", show_edge=False, pad_edge=False)
    for at, name in enumerate(head):
        table.add_column(name, justify="left" if at < words else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(escape_line(cell)) for cell in row))
    return table


def sides_rows(found: Comparison) -> list[list[str]]:
    """The two datasets, a line a figure."""
    a, b = found.a, found.b
    rows = [
        ["folder", a.where, b.where],
        ["manifest", a.manifest[:16], b.manifest[:16]],
        [rows_word(a), count(a.rows), count(b.rows), signed(a.rows, b.rows)],
        ["tokens", count(a.tokens), count(b.tokens), signed(a.tokens, b.tokens)],
        ["of completions" if a.preference else "trained", count(a.labels), count(b.labels), signed(a.labels, b.labels)],
        ["shards", count(a.shards), count(b.shards), signed(a.shards, b.shards)],
        ["bytes", size(a.bytes), size(b.bytes), relative(a.bytes, b.bytes)],
    ]
    return [row if len(row) == 4 else [*row, "=" if row[1] == row[2] else ""] for row in rows]


def setting_row(one: Setting) -> list[str]:
    """A key that differs, and what it is in both."""
    where = "" if one.section == "configuration" else f"{one.section}: "
    return [where + one.key, value_of(one.a), value_of(one.b)]


def input_row(one: InputChange) -> list[str]:
    """An input file's change."""
    what = one.what
    if one.was is not None:
        what += f" from {one.was}"
    if one.rows is not None:
        what += f"; its first {count(one.rows)} rows are the same"
    held = ["–" if value is None else size(value) for value in (one.bytes_a, one.bytes_b)]
    return [one.source, one.file, what, *held]


def example_row(one: ShownExample) -> list[str]:
    """An example's figures, A → B where they differ."""
    return [
        one.id if one.was is None else f"{one.id} (was {one.was})",
        _pair(one.tokens_a, one.tokens_b),
        _pair(one.trained_a, one.trained_b),
        _pair(one.copies_a, one.copies_b),
        _pair(one.split_a, one.split_b),
    ]


def kind_title(kind: str, found: ExamplesChange) -> str:
    """What a kind of examples is called."""
    return "in both, of another length" if kind == "tokens" and found.contents is None else KINDS[kind]


def example_head() -> tuple[str, ...]:
    """Of `example_row`."""
    return ("example", "tokens", "trained", "copies", "split")


def sources_of(found: ExamplesChange) -> tuple[tuple[str, ...], list[list[str]]]:
    """(head, rows) of the table of examples by source; without what only rows tell, where none was read."""
    columns = {"source": "source", "same": "same", "tokens": "other tokens", "labels": "other tokens trained"}
    if found.contents is None:
        columns = {"source": "source", "same": "same length", "tokens": "other length"}
    columns |= {"only_a": "only in A", "only_b": "only in B"}
    if found.contents is not None:
        columns |= {"copies": "other copies", "moved": "other split"}
    rows = [[one.source, *(count(getattr(one, key)) for key in list(columns)[1:])] for one in found.sources]
    return tuple(columns.values()), rows


def length_rows(found: LengthsChange) -> list[list[str]]:
    """Quantiles of lengths, a line each."""
    one, other = found.a, found.b
    rows: list[tuple[str, float, float]] = [("examples", one.count, other.count), ("mean", one.mean, other.mean)]
    rows += [(name, one.quantiles.get(name, 0.0), other.quantiles.get(name, 0.0)) for name in QUANTILES]
    return [[name, count(a), count(b), signed(a, b)] for name, a, b in rows]


def show_table(console: Console, table: Table) -> None:
    """Print a table after a blank line."""
    say(console)
    console.print(table)


def _sides(found: Comparison) -> Table:
    return table_of("", ("", "A", "B", "change"), sides_rows(found), words=1)


def _inputs(console: Console, found: Comparison, full: bool) -> None:
    inputs = found.inputs
    if not inputs.changes:
        if full:
            say(console)
            say(console, inputs.sentence)
        return
    shown = inputs.changes if full else inputs.changes[:NAMED]
    show_table(console, table_of("Inputs", ("source", "file", "what", "A", "B"), map(input_row, shown), words=3))
    more = sum(inputs.counts.values()) - len(shown)
    if more > 0:
        say(console, f"and {count(more)} more")


def _lengths(found: LengthsChange) -> Table:
    return table_of("Tokens of an example", ("", "A", "B", "change"), length_rows(found), words=1)


def _examples(console: Console, found: ExamplesChange, full: bool) -> None:
    say(console)
    say(console, found.sentence, "bold")
    if not found.shown and not full:
        return
    show_table(console, table_of("Examples", *sources_of(found), words=1))
    for kind, examples in found.shown.items():
        shown = examples if full else examples[:NAMED]
        number = sum(getattr(one, kind) for one in found.sources[:1])
        title = f"{kind_title(kind, found)}: {count(number)}" + (
            f", the first {len(shown)}" if number > len(shown) else ""
        )
        show_table(console, table_of(title, example_head(), map(example_row, shown), words=1))
    say(console)
    say(console, found.compared)


def inspect_hints(found: Comparison, examples: ExamplesChange) -> list[str]:
    """How to find out why an example is not in both, where both read the same rows of its source."""
    other = {one.source for one in found.inputs.changes}
    hints = []
    for kind, side, lacks in (("only_a", found.b, "B"), ("only_b", found.a, "A")):
        shown = examples.shown.get(kind, [])
        here = [one for one in shown if one.source in side.sources and one.source not in other]
        if here:
            command = f"packtrain inspect {shlex.quote(side.where)} --id {shlex.quote(here[0].id)}"
            hints.append(f"{command} says why {lacks} lacks it")
    return hints


def _pair(a: int | str | None, b: int | str | None) -> str:
    texts = [value if isinstance(value, str) else count(value) for value in (a, b) if value is not None]
    if not texts:
        return "–"
    return texts[0] if len(set(texts)) == 1 else " → ".join(texts)
