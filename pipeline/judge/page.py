"""The page of an evaluation: its sections with charts, and some failures with prompt, program and outputs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...schemas.units import duration, plural, share
from ...stages.judge.problems import Problem, expected_texts
from ...stages.judge.verdicts import Verdict
from ..report.draw.blocks import Block, Markup, Page, PageSection, Switch
from ..report.draw.markup import escaped
from .attempts import Attempt
from .charts import pass_chart, time_chart, verdicts_chart
from .evaluation import CALIBRATION, PAGE
from .problem_file import ProblemFile
from .results_file import SampleResult
from .sections import sections
from .summary import Results, Summary, for_display

_EXAMPLES = 5
"""Failures that are shown of each verdict."""
_TEXT = 6_000
"""Characters of a text that is shown."""


def evaluation_page(summary: Summary, results: Results, attempts: Sequence[Attempt], problems: ProblemFile) -> Page:
    """The page; reads the problems of the failures that it shows."""
    summary = for_display(summary)
    made = [_with_charts(summary, results, one) for one in sections(summary)]
    time = time_chart(results)
    if time is not None:
        made.insert(-1, PageSection("time", "How long do they run?", _how_long(results), [time]))
    failures = _failures(results, attempts, problems)
    if failures is not None:
        made.insert(-1, failures)
    of = "the data's own programs" if summary.of_references else summary.title
    return Page(
        f"Evaluation of {of}",
        f"Judged by the tests of {summary.data}.",
        made,
        _facts(summary),
    )


def _how_long(results: Results) -> str:
    ran = sorted(one.outcome.slowest_seconds for one in results.values() if one.outcome.tests_run)
    median, most = duration(ran[len(ran) // 2]), duration(ran[-1])
    return f"In half of the {len(ran):,} that ran, the slowest test took at most {median}; in all of them, {most}."


def _facts(summary: Summary) -> list[tuple[str, str]]:
    whole = summary.scores[0]
    facts = [(f"pass@{k}", share(one.value)) for k, one in whole.estimates.items()]
    if summary.of_references:
        facts.append(("of the programs pass", share(whole.passed / max(whole.samples, 1))))
    facts += [
        ("problems", f"{whole.problems:,}"),
        ("programs" if summary.of_references else "samples", f"{whole.samples:,}"),
    ]
    if summary.machine_failures:
        facts.append(("left out: the sandbox failed", f"{summary.machine_failures:,}"))
    return facts


def _with_charts(summary: Summary, results: Results, section: PageSection) -> PageSection:
    """The section with charts before or in place of its tables."""
    charts: list[Block] = []
    blocks = list(section.blocks)
    if section.name == "pass" and not summary.of_references:
        for name, title, scores in (
            ("pass-chart", "pass@k by difficulty", summary.scores),
            ("calibrated-chart", "Only problems for which a reference solution passes", summary.calibrated or ()),
        ):
            chart = pass_chart(name, title, scores, summary.ks)
            if chart is not None:
                charts.append(chart)
                del blocks[0]  # the chart has its table
    elif section.name == "verdicts" and results:
        charts, blocks = [verdicts_chart(summary)], []
    elif section.name == "references" and summary.calibration_page == f"{CALIBRATION}/{PAGE}":
        charts = [Markup(f'<p><a href="{CALIBRATION}/{PAGE}">The page of the calibration</a></p>')]
    return replace(section, blocks=[*charts, *blocks])


# Failures


def _failures(results: Results, attempts: Sequence[Attempt], problems: ProblemFile) -> PageSection | None:
    chosen = _chosen(results)
    if not chosen:
        return None
    rows = {one.about.row for members in chosen.values() for one in members}
    read = {problem.row: problem for problem in problems.problems(rows)}
    tried = {one.key: one for one in attempts}
    panels = [
        (verdict.value, [Markup(_example(one, read[one.about.row], tried[one.key])) for one in members])
        for verdict, members in chosen.items()
    ]
    shown = sum(len(members) for members in chosen.values())
    failed = sum(one.outcome.verdict is not Verdict.passed for one in results.values())
    return PageSection(
        "failures",
        "What do failures look like?",
        f"{shown:,} of {plural(failed, 'failure')}, by verdict; results.jsonl has all of them.",
        [Switch("failures-switch", "Verdict", panels)],
    )


def _chosen(results: Results) -> dict[Verdict, list[SampleResult]]:
    """A few failures of each verdict, of different problems as far as possible."""
    chosen: dict[Verdict, list[SampleResult]] = {}
    for verdict in Verdict:
        if verdict is Verdict.passed:
            continue
        failed = [results[key] for key in sorted(results) if results[key].outcome.verdict is verdict]
        first: Mapping[int, SampleResult] = {one.about.row: one for one in reversed(failed)}
        others = [one for one in failed if first[one.about.row] is not one]
        members = [*sorted(first.values(), key=lambda one: one.key), *others][:_EXAMPLES]
        if members:
            chosen[verdict] = members
    return chosen


def _example(result: SampleResult, problem: Problem, attempt: Attempt) -> str:
    about, outcome = result.about, result.outcome
    name = f"failure-{about.row}-{about.sample}"
    said = (f"Program ({about.extraction.value})", attempt.code) if attempt.code else ("Answer", attempt.answer)
    texts = [("Problem", problem.question), said]
    at = outcome.failed_test
    if at is not None and at < len(problem.inputs):
        called = f"Arguments of {problem.function}" if problem.function else "Standard input"
        texts += [
            (f"{called}, test {at + 1} of {len(problem.inputs)}", problem.inputs[at].decode("utf-8", "replace")),
            ("Expected", _expected(problem, at)),
        ]
        if outcome.actual is not None:
            texts.append(("Returned" if problem.function else "Printed", outcome.actual))
    if outcome.detail:
        texts.append(("Standard error", outcome.detail))
    body = "".join(
        f'<h5 id="{name}-{place}"><span>{escaped(title, 200)}</span></h5>'
        f'<pre tabindex="0" role="region" aria-labelledby="{name}-{place}">{escaped(text, _TEXT)}</pre>'
        for place, (title, text) in enumerate(texts)
        if text
    )
    facts = f"{outcome.verdict.value}; {plural(outcome.tests_run, 'test')} run, {outcome.seconds:.2f} s"
    return (
        f'<article class="row" aria-labelledby="{name}"><h4 id="{name}">Problem {escaped(about.id, 100)} '
        f"({escaped(problem.difficulty, 60)}), sample {about.sample}</h4><p>{facts}</p>"
        f'<section class="doc-text">{body}</section></article>\n'
    )


def _expected(problem: Problem, at: int) -> str:
    if problem.function is None:
        return expected_texts(problem.expected[at])[0]
    return json.dumps(problem.expected[at], ensure_ascii=False)
