"""The report in a terminal: a sentence of each section, and small tables. Text from data is made harmless."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...schemas.escape import escape_line
from ...schemas.report import Choice, Packing, Point, Report, SourceLoss, Training, Trust
from ..console import say
from ..units import duration, plural, rate, share, size
from .balance_view import balance_note
from .by_source import SOURCES_HEAD, lost, source_cells, source_tables
from .choice_notes import own_way
from .saving import STRATEGIES, beside_time
from .spoken import flops, large

QUESTIONS = {
    "choice": "Which max_length?",
    "flow": "What happened to my data?",
    "training": "What is being trained on?",
    "packing": "How good is the packing?",
    "batch": "What batch size?",
    "trust": "Can I trust it?",
}
"""Section → what it answers."""
_AROUND = 2
"""Lengths that are shown below and above the configured one."""
_SOURCES = 8
"""That are shown by what they lose."""
_BAR = 16
_REASONS = 6


def print_report(console: Console, report: Report) -> None:
    """Print the summary."""
    what = "Report of" if report.kind == "run" else "Plan of"
    _say(console, f"{what} {report.name}", "bold")
    if report.sample is not None and not report.sample.exhaustive:
        seen, of_all = report.sample.rows, report.sample.rows_estimated
        _say(
            console,
            f"From a sample of {seen:,} of about {of_all:,} rows. The rows and FLOPs of each length are the "
            f"sample's: for all, multiply them by about {of_all / max(seen, 1):.3g}. Shares are estimates, "
            "and the longest document may be one that was not read.",
            "yellow",
        )
    for number, (name, question) in enumerate(QUESTIONS.items(), 1):
        console.print()
        console.print(Text(f"{number}. {question}", style="bold cyan"))
        section = getattr(report, name)
        if section is None:
            _say(console, report.absent.get(name, "It is not known."), "dim")
            continue
        _say(console, section.sentence)
        if name == "choice":
            _choice(console, section)
        elif name == "flow":
            _reasons(console, report)
        elif name == "training":
            _training(console, section)
        elif name == "packing":
            _packing(console, section)
        elif name == "trust":
            _trust(console, section)


def _choice(console: Console, choice: Choice) -> None:
    if choice.advice is not None:
        _say(console, choice.advice.sentence, "green")
    strategy = choice.strategy if any(one.strategy == choice.strategy for one in choice.points) else "bfd"
    mine = [one for one in choice.points if one.strategy == strategy]
    here = next((index for index, one in enumerate(mine) if one.max_length == choice.max_length), 0)
    advised = choice.advice.max_length if choice.advice is not None else choice.max_length
    there = next((index for index, one in enumerate(mine) if one.max_length == advised), here)
    near = [one for index, one in enumerate(mine) if abs(index - here) <= _AROUND or abs(index - there) <= 1]
    with_other = choice.advice is not None and choice.advice.strategy != strategy
    word = f"advised, {choice.advice.strategy}" if choice.advice is not None and with_other else "advised"
    table = _table(
        f"Other lengths, {own_way(choice)}; FLOPs with {choice.shape.name}",
        ("max_length", "trained lost", "cut or out", "rows", "fill", "FLOPs", ""),
    )
    for one in near:
        marks = [
            *(["configured"] if one.max_length == choice.max_length else []),
            *([word] if one.max_length == advised and choice.advice is not None else []),
        ]
        _add(table, f"{one.max_length:,}", *_of_point(one), ", ".join(marks))
    console.print(table)
    others = [one for one in choice.points if one.max_length == choice.max_length]
    table = _table(
        f"Other strategies at {choice.max_length:,} tokens",
        ("strategy", "trained lost", "cut or out", "rows", "fill", "FLOPs", ""),
    )
    for one in others:
        loss, cut, number, *rest = _of_point(one)
        number += " batches" if one.strategy in STRATEGIES else ""
        mark = "configured" if one.strategy == choice.strategy else ""
        _add(table, one.strategy, loss, cut, number, *rest, mark)
    console.print(table)
    for title, rows in source_tables(choice):
        _sources(console, title, rows)
    for note in choice.notes:
        _say(console, f"  {note}", "dim")


def _sources(console: Console, title: str, sources: Sequence[SourceLoss]) -> None:
    """What sources lose, those that lose most first."""
    trained = any(one.labels for one in sources)
    hit = [one for one in sources if one.documents_cut or one.documents_lost]
    hit.sort(key=lambda one: (-lost(one, trained), -one.documents_cut / one.documents))
    if not hit:
        _say(console, f"  {title}: none has a longer document.", "dim")
        return
    table = _table(title, SOURCES_HEAD)
    for one in hit[:_SOURCES]:
        _add(table, *source_cells(one))
    console.print(table)
    if len(hit) > _SOURCES:
        _say(console, f"  and {plural(len(hit) - _SOURCES, 'source')} more, which lose less", "dim")
    if len(sources) > len(hit):
        others = len(sources) - len(hit)
        _say(console, f"  {plural(others, 'source')} with no longer document", "dim")


def _of_point(one: Point) -> tuple[str, ...]:
    whole = one.labels + one.labels_lost
    lost = share(one.labels_lost / whole, 2) if whole else "–"
    return (lost, f"{one.documents_cut + one.documents_lost:,}", f"{one.rows:,}", share(one.fill), flops(one.flops))


def _reasons(console: Console, report: Report) -> None:
    flow = report.flow
    assert flow is not None
    for reason, number in list(flow.rejected.items())[:_REASONS]:
        _say(console, f"  {reason} {number:,}: {flow.reasons.get(reason, '')}", "yellow")
    if len(flow.rejected) > _REASONS:
        _say(console, f"  and {len(flow.rejected) - _REASONS:,} more reasons", "yellow")
    if flow.rejected and flow.rejects_file is not None:
        say(console, f"  all of them: {escape_line(flow.rejects_file)}")


def _training(console: Console, training: Training) -> None:
    table = _table("By source", ("source", "examples", "tokens", "trained", "", "share of training"))
    whole = sum(one.labels for one in training.sources)
    for one in training.sources:
        part = one.labels / whole if whole else 0.0
        trained = one.labels / one.tokens if one.tokens else 0.0
        _add(table, one.source, f"{one.examples:,}", large(one.tokens), share(trained), bar(part), share(part))
    console.print(table)


def _packing(console: Console, packing: Packing) -> None:
    if packing.splits:
        console.print(_by_split(packing))
    for balance in packing.balance:
        each = "one row" if balance.rows_each == 1 else f"{balance.rows_each} rows"
        _say(
            console,
            f"  {balance.ranks} ranks, {each} each: the slowest takes {balance.plain:.2f} × the mean, "
            f"{balance.balanced:.2f} × as the loader deals rows, {balance.worst:.2f} × at worst",
        )
    if note := balance_note(packing):
        _say(console, f"  {note}", "dim")
    if packing.savings:
        table = _table(
            f"An epoch at {packing.max_length:,} tokens, assuming {packing.shape.name} and "
            f"{flops(packing.device_flops)}/s",
            ("batches", "tokens computed", "steps", "FLOPs", "estimated"),
        )
        for saving in packing.savings:
            _add(
                table,
                saving.strategy,
                large(saving.slots),
                f"{saving.steps:,}",
                flops(saving.flops),
                duration(saving.seconds),
            )
        console.print(table)
    if note := beside_time(packing):
        _say(console, f"  {note}", "dim")


def _by_split(packing: Packing) -> Table:
    table = _table("By split", ("split", "rows", "bound", "gap", "fill", "documents a row", "shards"))
    for one in packing.splits:
        _add(
            table,
            one.split,
            f"{one.rows:,}",
            f"{one.bound:,}" if one.bound else "–",
            share(one.gap, 3) if one.bound else "–",
            share(one.fill, 2),
            f"{one.pieces / one.rows:,.1f}" if one.rows and one.pieces else "–",
            f"{one.shards:,}",
        )
    return table


def _trust(console: Console, trust: Trust) -> None:
    table = _table("Stages", ("stage", "took", "rate"))
    for stage in trust.stages:
        told = stage.amount is not None and stage.seconds > 0
        _add(
            table,
            stage.name,
            duration(stage.seconds),
            rate((stage.amount or 0) / stage.seconds, stage.unit) if told else "",
        )
    if trust.stages:
        console.print(table)
    _say(console, f"  tokens by {trust.engine}; {plural(trust.inputs_in_all, 'file')}, {size(trust.bytes_in_all)}")


def bar(part: float, width: int = _BAR) -> str:
    """A share as a bar of eighths."""
    eighths = round(min(max(part, 0.0), 1.0) * width * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")


def _table(title: str, head: Sequence[str]) -> Table:
    table = Table(title=Text(escape_line(title)), title_justify="left", show_edge=False, pad_edge=False)
    for index, name in enumerate(head):
        words = index == 0 or name in ("", "share of training")
        left = words and name != "share of training"
        table.add_column(name, justify="left" if left else "right", no_wrap=index == 0)
    return table


def _add(table: Table, *cells: str) -> None:
    """A row of plain text."""
    table.add_row(*(Text(escape_line(cell)) for cell in cells))


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(Text(escape_line(text), style=style))
