"""The sections of a report: a question, its answer in a sentence, and tables. Page, terminal and card show the same."""

from collections.abc import Iterator

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
_LOSES_MUCH = 0.05
"""Lost share of a source's tokens from which the report warns of it."""
_BY_LENGTH = ("overlong", "cut_untrained", "untrained_piece")
"""Reasons for dropped tokens that a limit causes."""


def sections(report: Report) -> list[Section]:
    """The sections of a report, in the order of `QUESTIONS`. One that could not be made says why instead. Where nothing
    was compared with evaluation data, there is none on contamination.
    """
    choice = report.choice
    flow = report.flow
    contamination = report.contamination
    training = report.training
    packing = report.packing
    by_name: dict[str, Section | None] = {
        "choice": choice_section(choice) if choice is not None else None,
        "flow": _flow(flow) if flow is not None else None,
        "contamination": contamination_section(contamination) if contamination is not None else None,
        "training": _training(training, flow) if training is not None else None,
        "packing": _packing(packing, is_estimate=report.sample is not None) if packing is not None else None,
        "made": _made(report.made) if report.made is not None else None,
    }
    # Most runs have no evaluation data: a section that says so would be noise.
    if contamination is None and "contamination" not in report.absent:
        del by_name["contamination"]
    return [
        section or Section(name, QUESTIONS[name], report.absent.get(name, "This report does not say."))
        for name, section in by_name.items()
    ]


def answers(report: Report) -> Iterator[str]:
    """Yield the answer of each section that a report has, and what it warns of."""
    for section in sections(report):
        # A section that the report lacks is here, too: its sentence only says why.
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
    """What the report is of, in a line for the top of page and terminal."""
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
    yield _packing(packing, is_estimate=False).sentence, ""
    yield from ((line, "") for line in describe_unused(total, rejects))
    if uses := uses_sentence(ledger.sources):
        yield uses, ""
    yield from ((line, "yellow") for line in describe_contents(total))


# What happened to my data?


def _flow(flow: Flow) -> Section:
    """What became of rows, examples and tokens, and what could not be used."""
    ledger = Ledger(dict(flow.sources))
    total = ledger.total()
    rejected = rejected_of(total)
    reasons = reasons_of(total)
    sentences = [describe_supervision(flow.supervision), _describe_rows(total)]
    if rejected:
        unusable = plural(sum(rejected.values()), "row or example", "rows or examples")
        sentences.append(f"{unusable} could not be used.")
    if uses := uses_sentence(flow.sources):
        sentences.append(uses)
    tables = [ledger_grid(ledger)]
    if rejected:
        # The meaning of a reason says what to do, so it stands here, and not in a folded table.
        rows = [[reason, f"{number:,}", reasons.get(reason, "")] for reason, number in rejected.items()]
        place = f"; all of them: {flow.rejects_file}" if flow.rejects_file else ""
        tables.append(Grid(f"What could not be used, and what to do{place}", ("reason", "how many", ""), rows))
    folded = []
    if flow.rejects:
        head = ("source", "file", "line", "reason", "")
        rows = [
            [reject.source, reject.file, f"{reject.line:,}", reject.reason, reject.detail] for reject in flow.rejects
        ]
        folded.append(Grid("Some of these rows", head, rows, text_columns=5))
    meanings = [[reason, meaning] for reason, meaning in reasons.items() if reason not in rejected]
    if meanings:
        folded.append(Grid("What the other reasons mean", ("reason", "meaning"), meanings, text_columns=2))
    warnings = [*losing_sources(flow), *describe_contents(total)]
    return Section("flow", QUESTIONS["flow"], " ".join(sentences), tables, more=folded, warnings=warnings)


def _describe_rows(total: SourceLedger) -> str:
    """How many rows became how many tokens, and which share of these is lost."""
    examples = sum(total.examples_packed.values())
    sentence = (
        f"Of {plural(total.rows_read, 'row')}, {total.rows_used:,} were used. They gave "
        f"{plural(total.examples_made, 'example')}, of which {examples:,} {'is' if examples == 1 else 'are'} "
        f"packed as {plural(total.tokens_packed, 'token')}."
    )
    encoded = total.tokens_encoded
    # What the weights of the sources leave out is left out by choice: it is no loss.
    not_drawn = total.tokens_dropped.get(NOT_DRAWN, 0)
    lost = sum(total.tokens_truncated.values()) + sum(total.tokens_dropped.values()) - not_drawn
    if encoded:
        sentence += f" {share(lost / encoded)} of the encoded tokens are lost." if lost else " No token was lost."
    if not_drawn:
        sentence += f" {share(not_drawn / encoded)} of the encoded tokens are not drawn, by the weights of the sources."
    return sentence


def losing_sources(flow: Flow) -> Iterator[str]:
    """Which of several sources lose much of their text to the configured limits: a mixture whose average loses little
    may lose most of one source.
    """
    lost_shares = dict[str, float]()
    for name, entry in flow.sources.items():
        lost = sum(entry.tokens_truncated.values())
        lost += sum(entry.tokens_dropped.get(reason, 0) for reason in _BY_LENGTH)
        lost_shares[name] = lost / max(entry.tokens_encoded, 1)
    by_loss = sorted(lost_shares, key=lambda name: -lost_shares[name])
    losing = [f"{name} {share(lost_shares[name])}" for name in by_loss if lost_shares[name] >= _LOSES_MUCH]
    # Of a single source, the sentence on lost tokens says the same. As many are named as the ledger has columns.
    if losing and len(lost_shares) > 1:
        yield f"Of their tokens, these sources lose to the limits: {', '.join(losing[:COLUMNS])}."


# What is being trained on?


def _training(training: Training, flow: Flow | None) -> Section:
    """Which tokens have a label, by source.

    Args:
        flow: has the counts; None if the report lacks them, and this section then has none.
    """
    ledger = Ledger(dict(flow.sources) if flow is not None else {})
    total = ledger.total()
    policies = dict.fromkeys(training.policies.values())
    sentence = "Nothing is packed, so nothing is trained."
    if total.document_tokens:
        turns = f" in {plural(total.turns_trained, 'turn')} of the assistant" if total.turns_trained else ""
        sentence = (
            f"The loss falls on {share(total.labels_trained / total.document_tokens)} of the packed tokens, "
            f"{plural(total.labels_trained, 'token')}{turns} (mask: {', '.join(policies)})."
        )
    warnings = []
    if total.turns_without_stop:
        ends = plural(total.turns_without_stop, "trained turn")
        warnings.append(f"{ends} without an end-of-turn token: there the model does not learn to stop.")
    if total.weight_trained:
        warnings.append("Tokens have loss weights: a trainer that ignores them trains another objective.")
    # Columns that say the same of every source are left out.
    head = ["source", "examples", "tokens", "trained"]
    if len(policies) > 1:
        head.append("mask")
    head.append("of all trained")
    if total.weight_trained:
        head.append("of the loss")
    # By labels, not by rows: a source shapes the model by its labels.
    by_labels = sorted(ledger.sources.items(), key=lambda source: -source[1].labels_trained)
    rows = []
    for name, entry in by_labels[:_SOURCES]:
        cells = {
            "source": name,
            "examples": f"{sum(entry.examples_packed.values()):,}",
            "tokens": large(entry.document_tokens),
            "trained": share(entry.labels_trained / max(entry.document_tokens, 1), fixed=True),
            "mask": training.policies.get(name, ""),
            "of all trained": share(entry.labels_trained / max(total.labels_trained, 1), fixed=True),
            "of the loss": share(entry.weight_trained / (total.weight_trained or 1.0), fixed=True),
        }
        rows.append([cells[column] for column in head])
    return Section("training", QUESTIONS["training"], sentence, [Grid("By source", head, rows)], warnings=warnings)


# How good is the packing?


def packing_grid(packing: Packing) -> Grid:
    """Rows, bound and fill of each split; of preference pairs that are not packed, their tokens instead."""
    if packing.strategy == "pairs":
        rows = []
        for split in packing.splits:
            mean = f"{split.tokens / split.rows:,.0f}"
            rows.append([split.split, f"{split.rows:,}", f"{split.tokens:,}", share(_trained(split)), mean])
        return Grid("Preference pairs", ("split", "pairs", "tokens", "of completions", "tokens a pair"), rows)
    unit = f"{_unit(packing)} a row"
    head = ["split", "rows", "bound", "full", "padding", "tokens", "trained", unit]
    if not packing.padded_for:
        head.remove("padding")
    rows = []
    for split in packing.splits:
        cells = {
            "split": split.split,
            "rows": f"{split.rows:,}",
            "bound": f"{split.bound:,}" if split.bound else "–",
            "full": share(split.fill, digits=2, fixed=True),
            "padding": share(split.padding / (split.rows * packing.row_length), digits=2),
            "tokens": f"{split.tokens:,}",
            "trained": share(_trained(split)),
            unit: f"{_units_of_row(split, packing):.1f}",
        }
        rows.append([cells[column] for column in head])
    return Grid("Packing", head, rows)


def _unit(packing: Packing) -> str:
    """What rows are said to hold."""
    return "pairs" if packing.pairs else "documents"


def _units_of_row(split: SplitFigures, packing: Packing) -> float:
    """How many documents a row of a split holds on average, or how many pairs, which are two pieces each."""
    units = split.pieces / 2 if packing.pairs else split.pieces
    return units / split.rows


def _trained(split: SplitFigures) -> float:
    """The share of a split's tokens that is trained."""
    return split.labels / split.tokens if split.tokens else 0.0


def _packing(packing: Packing, *, is_estimate: bool) -> Section:
    """How full rows are, and how few rows any plan could have.

    Args:
        is_estimate: whether the figures are from a sample.
    """
    if not packing.splits:
        return Section("packing", QUESTIONS["packing"], "There are no packed rows.")
    main = next((split for split in packing.splits if split.split == "train"), packing.splits[0])
    if packing.strategy == "pairs":
        sentence = (
            f"With pack.strategy none, preference pairs are not packed: {plural(main.rows, 'pair')} of {main.split}, "
            "each a row of its own."
        )
        return Section("packing", QUESTIONS["packing"], sentence, [packing_grid(packing)])
    rows = f"{plural(main.rows, 'row')} of {packing.row_length:,} tokens"
    if is_estimate:
        rows = f"About {rows}"
    if not main.bound:  # it is not known of a sample
        bound = ""
    elif main.bound == main.rows:
        bound = "; no plan needs fewer"
    else:
        bound = f"; no plan needs fewer than {main.bound:,}"
    sentences = [
        f"{rows}, {share(main.fill, digits=2)} full, by {packing.strategy}{bound}.",
        f"A row holds {_units_of_row(main, packing):,.1f} {_unit(packing)} on average.",
    ]
    for split in packing.splits:
        if split is not main:
            sentences.append(f"{split.split}: {plural(split.rows, 'row')}, {share(split.fill, digits=2)} full.")
    if packing.padded_for:
        padding = share(main.padding / (main.rows * packing.row_length), digits=2)
        sentences.append(f"Padding for {packing.padded_for} takes {padding} of the rows.")
    return Section("packing", QUESTIONS["packing"], " ".join(sentences), [packing_grid(packing)])


# How is it made again?


def _made(reproduction: Made) -> Section:
    """What to run for the same bytes. The page also shows the configuration."""
    sentence = "A plan packs nothing; packtrain run with the same configuration does."
    # Only a finished dataset has a manifest.
    if reproduction.manifest:
        sentence = (
            "A run of the same configuration over the same files gives the same bytes, with manifest "
            f"{reproduction.manifest[:16]}."
        )
    return Section("made", QUESTIONS["made"], sentence)
