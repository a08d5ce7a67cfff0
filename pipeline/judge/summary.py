"""The numbers of an evaluation: what `summary.json` holds, the lines for the terminal, and the page, by the template of
the report, which escapes every text.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from ...schemas.units import plural
from ...stages.judge.comparators import Verdict
from ...stages.judge.passk import Estimate, Tally, compare, scores
from ..report.grid import Grid, Section
from ..report.page import page_html
from .problem_file import ProblemFile
from .results import Results, SampleResult

ALL = "all"
"""The name of the scores of all problems."""
REFERENCES = "the data's own solutions"
"""What stands in place of the hash of a samples file. They are no samples of anything, so they have no pass@k."""
_COUNTS = {"verdicts": "verdicts", "problems_unusable": "problems that cannot be judged"}
"""Keys of a summary that hold counts → what they count."""
_EACH = 3
"""Failures of each verdict that the page shows."""


def summarise(
    problems: ProblemFile, results: Results, identity: Mapping[str, Any], other: Results | None
) -> dict[str, Any]:
    """An evaluation in numbers.

    `scores` has, for all problems and each difficulty: `problems`, `problems_passed`, `samples`, `passed`, and for each
    k of `pass@k` its value, interval and problems; with another evaluation `compared`, the mean difference in each.

    Args:
        other: another evaluation of the same data, to compare with, or None.
    """
    ours, theirs = _tally(results), _tally(other or {})
    found: dict[str, Any] = {}
    for name in (ALL, *sorted({problems.heads[row].difficulty for row in ours} - {ALL})):
        mine = {row: one for row, one in ours.items() if name in (ALL, problems.heads[row].difficulty)}
        shares = scores(mine) if identity["samples"] != REFERENCES else {}
        found[name] = {
            "problems": len(mine),
            "problems_passed": sum(passed > 0 for _, passed in mine.values()),
            "samples": sum(samples for samples, _ in mine.values()),
            "passed": sum(passed for _, passed in mine.values()),
            **_named(shares),
        }
        if other is not None:
            found[name]["compared"] = _named(compare(mine, theirs, shares))
    return {
        "evaluation": dict(identity),
        "scores": found,
        "verdicts": _counted(one.verdict for one in results.values()),
        "problems_unusable": _counted(head.unusable for head in problems.heads.values() if head.unusable),
    }


def _tally(results: Results) -> dict[int, Tally]:
    found: dict[int, Tally] = {}
    for (row, _), one in sorted(results.items()):
        samples, passed = found.get(row, (0, 0))
        found[row] = samples + 1, passed + (one.verdict is Verdict.passed)
    return found


def _named(estimates: Mapping[int, Estimate]) -> dict[str, Any]:
    return {f"pass@{k}": asdict(one) for k, one in estimates.items()}


def _counted(names: Iterable[object]) -> dict[str, int]:
    return {str(name): count for name, count in Counter(names).most_common()}


def table(summary: Mapping[str, Any]) -> Grid:
    """The scores, by difficulty."""
    names = [name for name in summary["scores"][ALL] if name.startswith("pass@")]
    rows = [
        [name, *(f"{entry[key]:,}" for key in ("problems", "problems_passed", "samples", "passed"))]
        + [_interval(entry[k]) for k in names]
        for name, entry in summary["scores"].items()
    ]
    head = ("difficulty", "problems", "with a pass", "samples", "passed", *names)
    return Grid("Scores by difficulty, with intervals of 95 %", head, rows)


def _interval(one: Mapping[str, float]) -> str:
    return f"{100 * one['value']:.1f} % ({100 * one['low']:.1f}–{100 * one['high']:.1f})"


def lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """How this differs from another evaluation, then the other counts."""
    for name, entry in summary["scores"].items():
        for pass_k, one in entry.get("compared", {}).items():
            value, low, high = (100 * one[key] for key in ("value", "low", "high"))
            yield (
                f"{name}, {pass_k} against the other: {value:+.1f} points (95 %: {low:+.1f} to {high:+.1f}), over "
                f"{plural(one['problems'], 'problem')}"
            )
    for key, title in _COUNTS.items():
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
    failed: dict[Verdict, list[SampleResult]] = {}
    for one in results.values():
        if one.verdict is not Verdict.passed:
            failed.setdefault(one.verdict, []).append(one)
    shown = [
        _failure(one, programs[one.row, one.sample]) for verdict in Verdict for one in failed.get(verdict, [])[:_EACH]
    ]
    found = f"{plural(scores['samples'], 'program')} of {plural(scores['problems'], 'problem')}"
    sections = [
        Section("scores", "How many pass?", "; ".join(lines(summary)), [table(summary)]),
        Section("failures", "What fails?", "Some failures of each kind, up to their first failing test.", more=shown),
    ]
    return page_html(f"Evaluation on {data}", f"{found}, judged in: {summary['evaluation']['sandbox']}.", sections)


def _failure(one: SampleResult, code: str) -> Grid:
    rows = [("program", code), ("what came out", one.actual), ("errors", one.detail)]
    test = f" in test {one.failed_test}" if one.failed_test is not None else ""
    name = f"{one.id[:100]}, sample {one.sample}: {one.verdict}{test}"
    return Grid(name, ("", "text"), [(what, text[:4_000]) for what, text in rows if text], text_columns=2)
