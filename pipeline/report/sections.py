"""The sections of a report: a question, its answer in a sentence, and tables. Page, terminal and card show the same."""

from collections.abc import Callable, Iterator
from typing import Any

from ...schemas.dataset.ledger import Ledger, SourceLedger, reasons_of, rejected_of
from ...schemas.report.flow import Flow
from ...schemas.report.report import Made, Packing, Report, SplitFigures, Training
from ...schemas.tables.reasons import NOT_DRAWN
from ...schemas.units import large, plural, share
from .contamination_summary import QUESTION as CONTAMINATION_QUESTION
from .contamination_summary import contamination_section
from .grid import Grid, Lines, Section
from .ledger_lines import (
    COLUMNS,
    describe_contents,
    describe_supervision,
    describe_unused,
    ledger_grid,
    supervision_of,
    supervision_style,
    uses_sentence,
)
from .lengths.section import QUESTION as LENGTH_QUESTION
from .lengths.section import choice_section

QUESTIONS = {
    "choice": LENGTH_QUESTION,
    "flow": "What happened to my data?",
    "contamination": CONTAMINATION_QUESTION,
    "training": "What is being trained on?",
    "packing": "How good is the packing?",
    "made": "How is it made again?",
}
"""The question of each section."""
_SOURCES = 40
"""Maximum number of rows of a table with one row a source."""
_BATCH = 64
"""Unpacked examples of the batch for which the number of packed rows is named."""
_LOSES_MUCH = 0.05
"""Lost share of a source's tokens from which the report warns of it."""
_BY_LENGTH = ("overlong", "cut_untrained", "untrained_piece")
"""Reasons for dropped tokens that a limit causes."""


def sections(report: Report) -> list[Section]:
    """The sections of a report. Where one is missing, it says why. Without evaluation data, one is not there."""
    makers: dict[str, Callable[[Any], Section]] = {
        "choice": choice_section,
        "flow": _flow,
        "contamination": contamination_section,
        "training": lambda training: _training(training, report.flow),
        "packing": lambda packing: _packing(packing, estimated=report.sample is not None),
        "made": _made,
    }
    sections_of_report = []
    for name, make in makers.items():
        figures = getattr(report, name)
        if figures is not None:
            sections_of_report.append(make(figures))
        elif name != "contamination" or name in report.absent:
            sections_of_report.append(
                Section(name, QUESTIONS[name], report.absent.get(name, "This report does not say."))
            )
    return sections_of_report


def answers(report: Report) -> Iterator[str]:
    """Yield the answer of each section that a report has, and what it warns of."""
    for section in sections(report):
        if getattr(report, section.name) is not None:
            yield section.sentence
            yield from section.warnings


def report_lines(report: Report) -> Lines:
    """Each section's answer, and its tables."""
    yield lead(report), "bold"
    for section in sections(report):
        yield ""
        yield section.title, "bold cyan"
        yield section.sentence
        yield from ((warning, "yellow") for warning in section.warnings)
        yield from section.tables


def lead(report: Report) -> str:
    """What the report is of."""
    words = f"{'Report of' if report.kind == 'run' else 'Plan of'} {report.name}"
    sample = report.sample
    if sample is None:
        return words
    return (
        f"{words}, from a sample of {sample.rows:,} of {plural(sample.rows_in_all, 'row')}: counts in tables of "
        f"lengths and of the ledger are those of the sample, times {sample.rows_in_all / max(sample.rows, 1):.3g} for "
        "all data, which may have longer documents"
    )


def summary_lines(ledger: Ledger, packing: Packing, rejects: str) -> Iterator[tuple[str, str]]:
    """What a run says at its end, in (line, style in a terminal): what share of the supervised tokens is trained and
    where the rest went, how full the rows are, and what is not used.

    Args:
        rejects: the path of rejects.jsonl.
    """
    total = ledger.total()
    supervision = supervision_of(total)
    yield describe_supervision(supervision), supervision_style(supervision)
    yield _packing(packing, estimated=False).sentence, ""
    yield from ((line, "") for line in describe_unused(total, rejects))
    if uses := uses_sentence(ledger.sources):
        yield uses, ""
    yield from ((line, "yellow") for line in describe_contents(total))


# What happened to my data?


def _flow(flow: Flow) -> Section:
    ledger = Ledger(dict(flow.sources))
    total = ledger.total()
    tables = [ledger_grid(ledger)]
    rejected = rejected_of(total)
    reasons = reasons_of(total)
    if rejected:
        rows = [[reason, f"{number:,}", reasons.get(reason, "")] for reason, number in rejected.items()]
        place = f"; all of them: {flow.rejects_file}" if flow.rejects_file else ""
        tables.append(Grid(f"What could not be used, and what to do{place}", ("reason", "how many", ""), rows))
    folded = []
    if flow.rejects:
        shown = [
            [reject.source, reject.file, f"{reject.line:,}", reject.reason, reject.detail] for reject in flow.rejects
        ]
        folded.append(Grid("Some of these rows", ("source", "file", "line", "reason", ""), shown, text_columns=5))
    meanings = [[reason, meaning] for reason, meaning in reasons.items() if reason not in rejected]
    if meanings:
        folded.append(Grid("What the other reasons mean", ("reason", "meaning"), meanings, 2))
    sentence = f"{describe_supervision(flow.supervision)} {_flow_sentence(total, sum(rejected.values()))}"
    if uses := uses_sentence(flow.sources):
        sentence += f" {uses}"
    warnings = [*losing_sources(flow), *describe_contents(total)]
    return Section("flow", QUESTIONS["flow"], sentence, tables, folded, warnings)


def _flow_sentence(total: SourceLedger, unusable: int) -> str:
    examples = sum(total.examples_packed.values())
    encoded = total.tokens_encoded
    words = (
        f"Of {plural(total.rows_read, 'row')}, {total.rows_used:,} were used. They gave "
        f"{plural(total.examples_made, 'example')}, of which {examples:,} {'is' if examples == 1 else 'are'} "
        f"packed as {plural(total.tokens_packed, 'token')}."
    )
    not_drawn = total.tokens_dropped.get(NOT_DRAWN, 0)
    lost = sum(total.tokens_truncated.values()) + sum(total.tokens_dropped.values()) - not_drawn
    if encoded:
        words += f" {share(lost / encoded)} of the encoded tokens are lost." if lost else " No token was lost."
    if not_drawn:
        words += f" {share(not_drawn / encoded)} of the encoded tokens are not drawn, by the weights of the sources."
    if unusable:
        words += f" {plural(unusable, 'row or example', 'rows or examples')} could not be used."
    return words


def losing_sources(flow: Flow) -> Iterator[str]:
    """Which of several sources lose much of their text to the configured limits."""
    lost_shares = dict[str, float]()
    for name, entry in flow.sources.items():
        lost = sum(entry.tokens_truncated.values())
        lost += sum(entry.tokens_dropped.get(reason, 0) for reason in _BY_LENGTH)
        lost_shares[name] = lost / max(entry.tokens_encoded, 1)
    by_loss = sorted(lost_shares, key=lambda name: -lost_shares[name])
    losing = [f"{name} {share(lost_shares[name])}" for name in by_loss if lost_shares[name] >= _LOSES_MUCH]
    if losing and len(lost_shares) > 1:  # named are as many as a table has columns
        yield f"Of their tokens, these sources lose to the limits: {', '.join(losing[:COLUMNS])}."


# What is being trained on?


def _training(training: Training, flow: Flow | None) -> Section:
    ledger = Ledger(dict(flow.sources) if flow is not None else {})
    total = ledger.total()
    policies = dict.fromkeys(training.policies.values())
    tokens = total.document_tokens
    labels = total.labels_trained
    weight = total.weight_trained
    turns = f" in {plural(total.turns_trained, 'turn')} of the assistant" if total.turns_trained else ""
    sentence = (
        f"The loss falls on {share(labels / tokens)} of the packed tokens, {plural(labels, 'token')}{turns} "
        f"(mask: {', '.join(policies)})."
        if tokens
        else "Nothing is packed, so nothing is trained."
    )
    warnings = []
    if total.turns_without_stop:
        ends = plural(total.turns_without_stop, "trained turn")
        warnings.append(f"{ends} without an end-of-turn token: there the model does not learn to stop.")
    if weight:
        warnings.append("Tokens have loss weights: a trainer that ignores them trains another objective.")
    rows = []
    for name, entry in sorted(ledger.sources.items(), key=lambda source: -source[1].labels_trained)[:_SOURCES]:
        row = [name, f"{sum(entry.examples_packed.values()):,}", large(entry.document_tokens)]
        row.append(share(entry.labels_trained / max(entry.document_tokens, 1), fixed=True))
        if len(policies) > 1:
            row.append(training.policies.get(name, ""))
        row.append(share(entry.labels_trained / max(labels, 1), fixed=True))
        if weight:
            row.append(share(entry.weight_trained / weight, fixed=True))
        rows.append(row)
    head = ["source", "examples", "tokens", "trained", *(["mask"] if len(policies) > 1 else []), "of all trained"]
    head += ["of the loss"] if weight else []
    return Section("training", QUESTIONS["training"], sentence, [Grid("By source", head, rows)], warnings=warnings)


# How good is the packing?


def packing_grid(packing: Packing) -> Grid:
    """Rows, bound and fill of each split; of preference pairs that are not packed, their tokens instead."""
    if packing.strategy == "pairs":
        rows = [
            [
                split.split,
                f"{split.rows:,}",
                f"{split.tokens:,}",
                share(_trained(split)),
                f"{split.tokens / split.rows:,.0f}",
            ]
            for split in packing.splits
        ]
        return Grid("Preference pairs", ("split", "pairs", "tokens", "of completions", "tokens a pair"), rows)
    padded = bool(packing.padded_for)
    rows = [
        [
            split.split,
            f"{split.rows:,}",
            f"{split.bound:,}" if split.bound else "–",
            share(split.fill, 2, fixed=True),
            *([share(split.padding / (split.rows * packing.row_length), 2)] if padded else []),
            f"{split.tokens:,}",
            share(_trained(split)),
            f"{split.pieces / (2 if packing.pairs else 1) / split.rows:.1f}",
        ]
        for split in packing.splits
    ]
    padding = ["padding"] if padded else []
    unit = f"{_unit(packing)} a row"
    return Grid("Packing", ("split", "rows", "bound", "full", *padding, "tokens", "trained", unit), rows)


def _unit(packing: Packing) -> str:
    """What stands in a row whole."""
    return "pairs" if packing.pairs else "documents"


def _trained(split: SplitFigures) -> float:
    """The share of a split's tokens that is trained."""
    return split.labels / split.tokens if split.tokens else 0.0


def _packing(packing: Packing, *, estimated: bool) -> Section:
    if not packing.splits:
        return Section("packing", QUESTIONS["packing"], "There are no packed rows.")
    main = next((split for split in packing.splits if split.split == "train"), packing.splits[0])
    if packing.strategy == "pairs":
        sentence = (
            f"With pack.strategy none, preference pairs are not packed: {plural(main.rows, 'pair')} of {main.split}, "
            "each a row of its own."
        )
        return Section("packing", QUESTIONS["packing"], sentence, [packing_grid(packing)])
    about = "About " if estimated else ""
    sentence = (
        f"{about}{plural(main.rows, 'row')} of {packing.row_length:,} tokens, {share(main.fill, 2)} full, "
        f"by {packing.strategy}"
    )
    if main.bound:
        sentence += "; no plan needs fewer" if main.rows == main.bound else f"; no plan needs fewer than {main.bound:,}"
    units_of_row = max(main.pieces, 1) / (2 if packing.pairs else 1) / main.rows
    sentence += f". A row holds {units_of_row:,.1f} {_unit(packing)} on average"
    rows = max(1, round(_BATCH / units_of_row))
    # Not of a few rows: no training makes batches of so few.
    if units_of_row > 1 and 4 * rows <= main.rows:
        batch = f"{rows:,} packed rows" if rows > 1 else "1 packed row"
        sentence += f"; a batch of {batch} replaces one of {_BATCH} {_unit(packing)} without packing"
    sentence += "."
    for split in packing.splits:
        if split is not main:
            sentence += f" {split.split}: {plural(split.rows, 'row')}, {share(split.fill, 2)} full."
    if packing.padded_for:
        padding = main.padding / (main.rows * packing.row_length)
        sentence += f" Padding for {packing.padded_for} takes {share(padding, 2)} of the rows."
    return Section("packing", QUESTIONS["packing"], sentence, [packing_grid(packing)])


# How is it made again?


def _made(reproduction: Made) -> Section:
    sentence = "A plan packs nothing; packtrain run with the same configuration does."
    if reproduction.manifest:
        sentence = (
            "A run of the same configuration over the same files gives the same bytes, with manifest "
            f"{reproduction.manifest[:16]}."
        )
    return Section("made", QUESTIONS["made"], sentence)
