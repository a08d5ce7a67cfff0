"""The page of a report: six or seven questions, each with an answer in words, then charts and tables."""

from collections.abc import Callable, Sequence
from typing import Any

from ....schemas.report import Choice, Packing, Report
from ....schemas.units import large, plural, share
from .blocks import Block, Page, PageSection
from .charts_choice import choice_blocks, strategy_words
from .charts_flow import flow_blocks
from .charts_packing import batch_blocks, packing_blocks
from .charts_training import training_blocks
from .charts_trust import trust_blocks
from .overlap import overlap_blocks

QUESTIONS = {
    "choice": "Which max_length?",
    "flow": "What happened to my data?",
    "overlap": "Is the evaluation data in it?",
    "training": "What is being trained on?",
    "packing": "How good is the packing?",
    "batch": "What batch size?",
    "trust": "Can I trust it?",
}
"""The question of each section."""
_BLOCKS: dict[str, Callable[[Any], list[Block]]] = {
    "choice": choice_blocks,
    "flow": flow_blocks,
    "overlap": overlap_blocks,
    "training": training_blocks,
    "packing": packing_blocks,
    "batch": batch_blocks,
    "trust": trust_blocks,
}


def report_page(report: Report) -> Page:
    """Make the page of a report. Where a section is missing, it says why."""
    sections = []
    for name, title in questions_of(report).items():
        content = getattr(report, name)
        if content is None:
            reason = report.absent.get(name, "This report does not say.")
            sections.append(PageSection(name, title, reason))
        else:
            said = _said(content)
            sections.append(PageSection(name, title, said, _BLOCKS[name](content)))
    title = f"{'Plan for' if report.kind == 'plan' else 'Packing report of'} {report.name}"
    return Page(title, _lead(report), sections, _facts(report))


def questions_of(report: Report) -> dict[str, str]:
    """The questions that a report answers, or says why not. Without evaluation data, one of them is not asked."""
    skipped = "overlap" if report.overlap is None and "overlap" not in report.absent else ""
    return {name: title for name, title in QUESTIONS.items() if name != skipped}


def _said(content: Any) -> str:
    """Return a section's answer; if the figures at the top cover more splits, it says which split it covers."""
    if isinstance(content, Choice):
        return _with_advice(content)
    if isinstance(content, Packing) and len(content.splits) > 1:
        return f"{content.sentence} This covers {main_split(content)} only."
    return str(content.sentence)


def main_split(packing: Packing) -> str:
    """Return the split to train on."""
    names = [one.split for one in packing.splits]
    return "train" if "train" in names else names[0]


def _with_advice(choice: Choice) -> str:
    """Return the sentence, plus the advised length if it differs from the configured one."""
    advice = choice.advice
    if advice is None or (advice.max_length, advice.strategy) == (choice.max_length, choice.strategy):
        return choice.sentence
    how = f" with {strategy_words(advice.strategy)}" if advice.strategy != choice.strategy else ""
    return f"{choice.sentence} Advised: {advice.max_length:,}{how}."


def _lead(report: Report) -> str:
    words = "Before packing" if report.kind == "plan" else "A finished dataset"
    words += f", {_when(report.made)}, packtrain {report.packtrain}."
    if report.sample is not None and not report.sample.exhaustive:
        words += f" From a sample of {report.sample.rows:,} of about {plural(report.sample.rows_estimated, 'row')}."
    if report.packing is not None and len(report.packing.splits) > 1:
        words += f" The figures cover {' and '.join(one.split for one in report.packing.splits)}."
    return words


def _when(made: str) -> str:
    """Write 2026-02-03T04:05:06Z as 2026-02-03 04:05 UTC; other text is unchanged."""
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
            facts.append(("fill", share(sum(one.fill * one.rows for one in packing.splits) / rows, 2)))
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
        facts.append(("unusable rows or examples", large(sum(report.flow.rejected.values()))))
    return facts
