"""The page of a report: six questions, each with its answer in a sentence and what shows it."""

from collections.abc import Callable, Sequence
from typing import Any

from ...schemas.report import Choice, Packing, Report
from .blocks import Block, Page, PageSection
from .charts_choice import choice_blocks, strategy_words
from .charts_flow import flow_blocks
from .charts_packing import batch_blocks, packing_blocks
from .charts_training import training_blocks
from .charts_trust import trust_blocks
from .spoken import large, share

_SECTIONS: tuple[tuple[str, str, Callable[[Any], list[Block]]], ...] = (
    ("choice", "Which max_length?", choice_blocks),
    ("flow", "What happened to my data?", flow_blocks),
    ("training", "What is being trained on?", training_blocks),
    ("packing", "How good is the packing?", packing_blocks),
    ("batch", "What batch size?", batch_blocks),
    ("trust", "Can I trust it?", trust_blocks),
)
"""(field of the report, question, what shows the answer)."""


def report_page(report: Report) -> Page:
    """Everything that the report says. What is absent says why."""
    sections = []
    for name, title, blocks in _SECTIONS:
        content = getattr(report, name)
        if content is None:
            reason = report.absent.get(name, "This report does not say.")
            sections.append(PageSection(name, title, reason))
        else:
            said = _said(content)
            sections.append(PageSection(name, title, said, blocks(content)))
    return Page(_title(report), _lead(report), sections, _facts(report))


def _said(content: Any) -> str:
    """The answer, and what it is of where the figures at the head are of more."""
    if isinstance(content, Choice):
        return _with_advice(content)
    if isinstance(content, Packing) and len(content.splits) > 1:
        return f"{content.sentence} This is of {main_split(content)}; the figures at the top are of all splits."
    return str(content.sentence)


def main_split(packing: Packing) -> str:
    """The split that is trained on."""
    names = [one.split for one in packing.splits]
    return "train" if "train" in names else names[0]


def _with_advice(choice: Choice) -> str:
    """The sentence, and what is advised instead: the section's question asks for it."""
    advice = choice.advice
    if advice is None or (advice.max_length, advice.strategy) == (choice.max_length, choice.strategy):
        return choice.sentence
    how = f" with {strategy_words(advice.strategy)}" if advice.strategy != choice.strategy else ""
    return f"{choice.sentence} Advised: {advice.max_length:,}{how}."


def _title(report: Report) -> str:
    return f"{'Plan for' if report.kind == 'plan' else 'Packing report of'} {report.name}"


def _lead(report: Report) -> str:
    words = "Before packing" if report.kind == "plan" else "A finished dataset"
    words += f", looked at {_when(report.made)} by packtrain {report.packtrain}."
    if report.sample is not None and not report.sample.exhaustive:
        words += f" From a sample of {report.sample.rows:,} of about {report.sample.rows_estimated:,} rows."
    if report.packing is not None and len(report.packing.splits) > 1:
        words += f" The figures here are of {' and '.join(one.split for one in report.packing.splits)} together."
    return words


def _when(made: str) -> str:
    """2026-02-03T04:05:06Z as 2026-02-03 04:05 UTC; anything else as it is."""
    if len(made) >= 16 and made[10] == "T" and made[4] == made[7] == "-":
        return f"{made[:10]} {made[11:16]} UTC"
    return made


def _facts(report: Report) -> Sequence[tuple[str, str]]:
    facts: list[tuple[str, str]] = []
    packing, training, choice = report.packing, report.training, report.choice
    sampled = report.sample is not None and not report.sample.exhaustive
    if training is not None and not sampled:
        tokens, labels = sum(one.tokens for one in training.sources), sum(one.labels for one in training.sources)
        facts.append(("tokens to pack" if report.kind == "plan" else "tokens packed", large(tokens)))
        if tokens:
            facts.append(("of them trained", share(labels / tokens)))
        facts.append(("examples", large(sum(one.examples for one in training.sources))))
    if packing is not None and packing.splits:
        rows, bound = sum(one.rows for one in packing.splits), sum(one.bound for one in packing.splits)
        slots = rows * packing.max_length
        facts.append((f"rows of {packing.max_length:,}", large(rows)))
        if slots:
            facts.append(("of them filled", share(sum(one.fill * one.rows for one in packing.splits) / rows, 2)))
        if bound:
            facts.append(("rows above the bound", share(rows / bound - 1, 2)))
    elif choice is not None:
        facts.append(("documents", large(choice.documents_in_all)))
        if "p50" in choice.lengths.quantiles:
            facts.append(("tokens of the median document", large(choice.lengths.quantiles["p50"])))
        facts.append(("max_length now", f"{choice.max_length:,}"))
        if choice.advice is not None:
            facts.append(("max_length advised", f"{choice.advice.max_length:,}"))
    if report.flow is not None and report.flow.rejected:
        facts.append(("rows or examples not usable", large(sum(report.flow.rejected.values()))))
    return facts
