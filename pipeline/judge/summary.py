"""The numbers of an evaluation: what `summary.json` holds, the lines for the terminal, and the page, by the template of
the report, which escapes every text.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from ...schemas.units import plural
from ...stages.judge.comparators import Verdict
from ...stages.judge.passk import Estimate, Tally, pass_at_k_differences, pass_at_k_scores
from ..report.grid import Grid, Section
from ..report.page import page_html
from .problem_file import ProblemFile
from .results import Results, SampleResult

ALL = "all"
"""The name of the scores of all problems."""
REFERENCES = "the data's own solutions"
"""What `identity` has in place of the hash of a samples file if the data's own programs run. These were not drawn from
a model, so they have no pass@k."""
_COUNT_TITLES = {"verdicts": "verdicts", "problems_unusable": "problems that cannot be judged"}
"""Keys of a summary that hold counts → what messages call these."""
_FAILURES_PER_VERDICT = 3
"""How many failures of each verdict the page shows."""
_TEXT_LENGTH = 4_000
"""Characters of a program, an output or an error that the page shows."""


def summarise(
    problems: ProblemFile, results: Results, identity: Mapping[str, Any], compared_results: Results | None
) -> dict[str, Any]:
    """An evaluation in numbers.

    `scores` has, for all problems and for each difficulty: `problems`, `problems_passed`, `samples` and `passed`; for
    each k `pass@k`, with its value, interval and problems; and, if another evaluation is given, `compared`, with the
    mean difference in each pass@k.

    Args:
        identity: what was evaluated, and how, as `evaluation` of the summary has it.
        compared_results: results of another evaluation of the same data, to compare with, or None.
    """
    tallies = _tallies(results)
    compared_tallies = _tallies(compared_results or {})
    difficulties = {problems.entries[row].difficulty for row in tallies}
    scores: dict[str, Any] = {}
    # A data set may call a difficulty `all`, too, which gets no scores of its own.
    for name in (ALL, *sorted(difficulties - {ALL})):
        group = {
            row: tally for row, tally in tallies.items() if name == ALL or problems.entries[row].difficulty == name
        }
        estimates = pass_at_k_scores(group) if identity["samples"] != REFERENCES else {}
        scores[name] = {
            "problems": len(group),
            "problems_passed": sum(tally.passed > 0 for tally in group.values()),
            "samples": sum(tally.samples for tally in group.values()),
            "passed": sum(tally.passed for tally in group.values()),
            **_estimates_by_name(estimates),
        }
        if compared_results is not None:
            differences = pass_at_k_differences(group, compared_tallies, estimates)
            scores[name]["compared"] = _estimates_by_name(differences)
    return {
        "evaluation": dict(identity),
        "scores": scores,
        "verdicts": _count(result.verdict for result in results.values()),
        "problems_unusable": _count(entry.unusable for entry in problems.entries.values() if entry.unusable),
    }


def _tallies(results: Results) -> dict[int, Tally]:
    """Row → samples of its problem and how many passed, in order of rows."""
    tallies: dict[int, Tally] = {}
    for (row, _), result in sorted(results.items()):
        tally = tallies.get(row, Tally(0, 0))
        tallies[row] = Tally(tally.samples + 1, tally.passed + (result.verdict is Verdict.passed))
    return tallies


def _estimates_by_name(estimates: Mapping[int, Estimate]) -> dict[str, Any]:
    """`pass@k` → the fields of an estimate, of k → the estimate."""
    return {f"pass@{k}": asdict(estimate) for k, estimate in estimates.items()}


def _count(names: Iterable[object]) -> dict[str, int]:
    """Name → how often it occurs, the most frequent first."""
    return {str(name): count for name, count in Counter(names).most_common()}


def score_table(summary: Mapping[str, Any]) -> Grid:
    """The scores, by difficulty."""
    # Every difficulty has these, too: a k of all problems is one for which each problem has enough samples.
    pass_at_k_names = [name for name in summary["scores"][ALL] if name.startswith("pass@")]
    rows = []
    for difficulty, scores in summary["scores"].items():
        counts = [f"{scores[key]:,}" for key in ("problems", "problems_passed", "samples", "passed")]
        rows.append([difficulty, *counts, *(_format_interval(scores[name]) for name in pass_at_k_names)])
    head = ("difficulty", "problems", "with a pass", "samples", "passed", *pass_at_k_names)
    return Grid("Scores by difficulty, with intervals of 95 %", head, rows)


def _format_interval(estimate: Mapping[str, float]) -> str:
    """`12.5 % (8.1–16.9)`."""
    return f"{100 * estimate['value']:.1f} % ({100 * estimate['low']:.1f}–{100 * estimate['high']:.1f})"


def describe_summary(summary: Mapping[str, Any]) -> Iterator[str]:
    """What the table of scores does not show: how this differs from another evaluation, then the other counts."""
    for difficulty, scores in summary["scores"].items():
        for name, difference in scores.get("compared", {}).items():
            value = 100 * difference["value"]
            low = 100 * difference["low"]
            high = 100 * difference["high"]
            yield (
                f"{difficulty}, {name} against the other: {value:+.1f} points (95 %: {low:+.1f} to {high:+.1f}), over "
                f"{plural(difference['problems'], 'problem')}"
            )
    for key, title in _COUNT_TITLES.items():
        if summary[key]:
            yield f"{title}: {', '.join(f'{name} {count:,}' for name, count in summary[key].items())}"


def evaluation_page(
    data: str, summary: Mapping[str, Any], results: Results, programs: Mapping[tuple[int, int], str]
) -> bytes:
    """One file of HTML, without scripts.

    Args:
        data: the name of the data's file.
        programs: (row, sample) → its program.
    """
    scores = summary["scores"][ALL]
    lead = (
        f"{plural(scores['samples'], 'program')} of {plural(scores['problems'], 'problem')}, judged in: "
        f"{summary['evaluation']['sandbox']}."
    )
    failures = [_failure_grid(result, programs[result.row, result.sample]) for result in _shown_failures(results)]
    sections = [
        Section(
            name="scores",
            title="How many pass?",
            sentence="; ".join(describe_summary(summary)),
            tables=[score_table(summary)],
        ),
        Section(
            name="failures",
            title="What fails?",
            sentence="Some failures of each kind, up to their first failing test.",
            more=failures,
        ),
    ]
    return page_html(f"Evaluation on {data}", lead, sections)


def _shown_failures(results: Results) -> Iterator[SampleResult]:
    """The first failures of each verdict."""
    for verdict in Verdict:
        if verdict is not Verdict.passed:
            failures = [result for result in results.values() if result.verdict is verdict]
            yield from failures[:_FAILURES_PER_VERDICT]


def _failure_grid(result: SampleResult, program: str) -> Grid:
    """A program that failed, with what came of it. An empty text has no line."""
    texts = {"program": program, "what came out": result.actual, "errors": result.detail}
    rows = [(title, text[:_TEXT_LENGTH]) for title, text in texts.items() if text]
    test = f" in test {result.failed_test}" if result.failed_test is not None else ""
    caption = f"{result.id[:100]}, sample {result.sample}: {result.verdict}{test}"
    return Grid(caption, ("", "text"), rows, text_columns=2)
