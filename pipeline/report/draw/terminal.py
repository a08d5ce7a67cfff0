"""Prints the report in a terminal: each section's answer, with small tables."""

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console

from ....schemas.report import Choice, Flow, Packing, Point, Report, SourceLoss, Training, Trust
from ....schemas.units import duration, flops, large, plural, rate, share, size
from ..collect.lengths.by_source import SOURCES_HEAD, lost, source_cells, source_tables
from ..collect.rows.balance import balance_note
from ..collect.saving import STRATEGIES, beside_time
from .blocks import Block, Grid, PageSection, Words
from .charts_training import kind_grid
from .choice_notes import own_way
from .page import questions_of
from .printing import print_blocks, print_section

_AROUND = 2
"""Number of lengths to show below and above the configured one."""
_SOURCES = 8
"""Maximum number of sources in the table of losses."""
_BAR = 16
_REASONS = 6


def print_report(console: Console, report: Report) -> None:
    """Print the summary."""
    lead = [Words(f"{'Report of' if report.kind == 'run' else 'Plan of'} {report.name}", style="bold")]
    if report.sample is not None and not report.sample.exhaustive:
        seen, of_all = report.sample.rows, report.sample.rows_estimated
        words = (
            f"From a sample of {seen:,} of about {plural(of_all, 'row')}. Rows and FLOPs of each length are those "
            f"of the sample; multiply them by about {of_all / max(seen, 1):.3g} for all data. Shares are "
            "estimates, and the data may have longer documents than the sample."
        )
        lead.append(Words(words, style="yellow"))
    print_blocks(console, lead, wrap=True)
    for number, (name, question) in enumerate(questions_of(report).items(), 1):
        content = getattr(report, name)
        known = content is not None
        sentence = content.sentence if known else report.absent.get(name, "Unknown.")
        blocks = _BLOCKS[name](content) if known and name in _BLOCKS else []
        print_section(console, PageSection(name, f"{number}. {question}", sentence, blocks), wrap=True)


def _choice(choice: Choice) -> list[Block]:
    strategy = choice.strategy if any(one.strategy == choice.strategy for one in choice.points) else "bfd"
    mine = [one for one in choice.points if one.strategy == strategy]
    here = next((index for index, one in enumerate(mine) if one.max_length == choice.max_length), 0)
    advised = choice.advice.max_length if choice.advice is not None else choice.max_length
    there = next((index for index, one in enumerate(mine) if one.max_length == advised), here)
    near = [one for index, one in enumerate(mine) if abs(index - here) <= _AROUND or abs(index - there) <= 1]
    with_other = choice.advice is not None and choice.advice.strategy != strategy
    word = f"advised, {choice.advice.strategy}" if choice.advice is not None and with_other else "advised"
    lengths = []
    for one in near:
        marks = [
            *(["configured"] if one.max_length == choice.max_length else []),
            *([word] if one.max_length == advised and choice.advice is not None else []),
        ]
        lengths.append([f"{one.max_length:,}", *_of_point(one), ", ".join(marks)])
    strategies = []
    for one in (one for one in choice.points if one.max_length == choice.max_length):
        loss, cut, number, *rest = _of_point(one)
        number += " batches" if one.strategy in STRATEGIES else ""
        mark = "configured" if one.strategy == choice.strategy else ""
        strategies.append([one.strategy, loss, cut, number, *rest, mark])
    head = ("trained lost", "cut or out", "rows", "fill", "FLOPs", "")
    return [
        *([Words(choice.advice.sentence, style="green")] if choice.advice is not None else []),
        Grid(f"Other lengths, {own_way(choice)}; FLOPs with {choice.shape.name}", ("max_length", *head), lengths),
        Grid(f"Other strategies at {choice.max_length:,} tokens", ("strategy", *head), strategies),
        *(block for title, rows in source_tables(choice) for block in _sources(title, rows)),
        *map(_note, choice.notes),
    ]


def _sources(title: str, sources: Sequence[SourceLoss]) -> list[Block]:
    """Make a table of what each source loses, largest loss first."""
    trained = any(one.labels for one in sources)
    hit = [one for one in sources if one.documents_cut or one.documents_lost]
    hit.sort(key=lambda one: (-lost(one, trained), -one.documents_cut / one.documents))
    if not hit:
        return [_note(f"{title}: no source has a longer document.")]
    blocks: list[Block] = [Grid(title, SOURCES_HEAD, [source_cells(one) for one in hit[:_SOURCES]])]
    if len(hit) > _SOURCES:
        blocks.append(_note(f"and {plural(len(hit) - _SOURCES, 'more source')} that lose less"))
    if len(sources) > len(hit):
        blocks.append(_note(f"{plural(len(sources) - len(hit), 'source')} without longer documents"))
    return blocks


def _of_point(one: Point) -> tuple[str, ...]:
    whole = one.labels + one.labels_lost
    lost = share(one.labels_lost / whole, 2, fixed=True) if whole else "–"
    out = f"{one.documents_cut + one.documents_lost:,}"
    return lost, out, f"{one.rows:,}", share(one.fill, fixed=True), flops(one.flops)


def _reasons(flow: Flow) -> list[Block]:
    lines = [
        f"  {reason} {number:,}: {flow.reasons.get(reason, '')}"
        for reason, number in list(flow.rejected.items())[:_REASONS]
    ]
    if len(flow.rejected) > _REASONS:
        lines.append(f"  and {len(flow.rejected) - _REASONS:,} more reasons")
    blocks: list[Block] = [Words(line, style="yellow") for line in lines]
    if flow.rejected and flow.rejects_file is not None:
        blocks.append(Words(f"  all of them: {flow.rejects_file}", code=True))
    return blocks


def _training(training: Training) -> list[Block]:
    whole = sum(one.labels for one in training.sources)
    weight = sum(one.weight or 0 for one in training.sources)
    rows = []
    for one in training.sources:
        part = one.labels / whole if whole else 0.0
        trained = share(one.labels / one.tokens if one.tokens else 0.0, fixed=True)
        loss = [share((one.weight or 0) / weight, fixed=True)] if weight else []
        cells = [one.source, f"{one.examples:,}", large(one.tokens), trained, bar(part), share(part, fixed=True)]
        rows.append([*cells, *loss])
    head = ["source", "examples", "tokens", "trained", "", "of trained tokens", *(["of the loss"] if weight else [])]
    blocks: list[Block] = [Grid("By source", head, rows)]
    kinds = {one.kind for source in training.sources for one in source.kinds}
    if kinds & {"thoughts", "tool calls"} and (grid := kind_grid(training.sources)) is not None:
        blocks.append(grid)
    return blocks


def _packing(packing: Packing) -> list[Block]:
    blocks: list[Block] = []
    if packing.splits:
        rows = [
            [
                one.split,
                f"{one.rows:,}",
                f"{one.bound:,}" if one.bound else "–",
                share(one.gap, 3, fixed=True) if one.bound else "–",
                share(one.fill, 2, fixed=True),
                f"{one.pieces / one.rows:,.1f}" if one.rows and one.pieces else "–",
                f"{one.shards:,}",
            ]
            for one in packing.splits
        ]
        blocks.append(Grid("By split", ("split", "rows", "bound", "gap", "fill", "documents a row", "shards"), rows))
    for balance in packing.balance:
        each = "one row" if balance.rows_each == 1 else plural(balance.rows_each, "row")
        blocks.append(
            Words(
                f"  {plural(balance.ranks, 'rank')}, {each} each: the slowest takes {balance.plain:.2f} × the mean, "
                f"{balance.balanced:.2f} × as the loader assigns rows, {balance.worst:.2f} × at worst"
            )
        )
    blocks += [_note(note)] if (note := balance_note(packing)) else []
    if packing.savings:
        assumed = f"assuming {packing.shape.name} and {flops(packing.device_flops)}/s"
        rows = [
            [one.strategy, large(one.slots), f"{one.steps:,}", flops(one.flops), duration(one.seconds)]
            for one in packing.savings
        ]
        head = ("batches", "tokens computed", "steps", "FLOPs", "estimated")
        blocks.append(Grid(f"An epoch at {packing.max_length:,} tokens, {assumed}", head, rows))
    return blocks + ([_note(note)] if (note := beside_time(packing)) else [])


def _trust(trust: Trust) -> list[Block]:
    rows = [
        [
            one.name,
            duration(one.seconds),
            rate(one.amount / one.seconds, one.unit) if one.amount and one.seconds > 0 else "",
        ]
        for one in trust.stages
    ]
    inputs = f"{plural(trust.inputs_in_all, 'file')}, {size(trust.bytes_in_all)}"
    return [
        *([Grid("Stages", ("stage", "took", "rate"), rows)] if rows else []),
        Words(f"  tokens by {trust.engine}; {inputs}"),
    ]


def _note(text: str) -> Words:
    return Words(f"  {text}", style="dim")


def bar(part: float, width: int = _BAR) -> str:
    """Draw a share as a text bar, in steps of an eighth of a character."""
    eighths = round(min(max(part, 0.0), 1.0) * width * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")


_BLOCKS: dict[str, Callable[[Any], list[Block]]] = {
    "choice": _choice,
    "flow": _reasons,
    "training": _training,
    "packing": _packing,
    "trust": _trust,
}
"""The function that makes the blocks below each section's answer."""
