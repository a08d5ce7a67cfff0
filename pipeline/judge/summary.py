"""The numbers of an evaluation: what `summary.json` and `--json` hold, and the lines for the terminal."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from ...stages.judge.comparators import Verdict
from ...stages.judge.passk import Estimate, Tally, compare, groups, scores
from .problem_file import ProblemFile
from .results import Results

_NAME = 16
"""Characters of a group's name in the table."""


def summarise(
    problems: ProblemFile,
    results: Results,
    ks: tuple[int, ...],
    identity: Mapping[str, Any],
    calibration: Results | None,
    other: Results | None,
) -> dict[str, Any]:
    """An evaluation in numbers.

    `scores` has, for all problems and each difficulty: `problems`, `samples`, `passed`, and for each k of `pass@k` its
    value, interval and problems; with a calibration also `calibrated`, the same over problems for which one of the
    data's own programs passes; with another evaluation `compared`, the mean difference in each pass@k.

    Args:
        ks: the k of pass@k; none for the data's own programs.
        calibration: results of the data's own programs, or None.
        other: another evaluation of the same data, to compare with, or None.
    """
    ours, theirs = _tally(results), _tally(other or {})
    passing = {row for (row, _), one in (calibration or {}).items() if one.verdict is Verdict.passed}
    found: dict[str, Any] = {}
    for name, rows in groups({row: problems.heads[row].difficulty for row in ours}).items():
        found[name] = _scores({row: ours[row] for row in rows}, ks)
        usable = {row: ours[row] for row in rows if row in passing}
        if usable:
            found[name]["calibrated"] = _scores(usable, ks)
        if other is not None:
            found[name]["compared"] = _named(compare({row: ours[row] for row in rows}, theirs, ks))
    judged = [row for row, head in problems.heads.items() if head.unusable is None]
    failing = sorted({row for row, _ in calibration or {}} - passing)
    return {
        "evaluation": dict(identity),
        "scores": found,
        "verdicts": _counted(one.verdict for one in results.values()),
        "rules": _counted(one.rule for one in results.values() if one.rule),
        "extraction": _counted(one.extraction for one in results.values()),
        "problems_unusable": _counted(head.unusable for head in problems.heads.values() if head.unusable),
        "problems_without_samples": len(set(judged) - set(ours)),
        "references_failed": [{"row": row, "id": problems.heads[row].id} for row in failing],
    }


def _tally(results: Results) -> dict[int, Tally]:
    found: dict[int, Tally] = {}
    for (row, _), one in sorted(results.items()):
        samples, passed = found.get(row, (0, 0))
        found[row] = samples + 1, passed + (one.verdict is Verdict.passed)
    return found


def _scores(tallies: Mapping[int, Tally], ks: tuple[int, ...]) -> dict[str, Any]:
    counts = {
        "problems": len(tallies),
        "problems_passed": sum(passed > 0 for _, passed in tallies.values()),
        "samples": sum(samples for samples, _ in tallies.values()),
        "passed": sum(passed for _, passed in tallies.values()),
    }
    return counts | _named(scores(tallies, ks))


def _named(estimates: Mapping[int, Estimate]) -> dict[str, Any]:
    return {f"pass@{k}": asdict(one) for k, one in estimates.items()}


def _counted(names: Iterable[object]) -> dict[str, int]:
    return {str(name): count for name, count in Counter(names).most_common()}


def lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """A table of the scores, then the other counts, for the terminal."""
    names = [name for name in summary["scores"]["all"] if name.startswith("pass@")]
    yield "  ".join([f"{'':{_NAME}}", "problems", " samples", " passed", *(f"{name:>22}" for name in names)])
    for name, entry in summary["scores"].items():
        for label, one in ((name, entry), ("  calibrated", entry.get("calibrated"))):
            if one is not None:
                yield _row(label, one, names)
        for pass_k, one in entry.get("compared", {}).items():
            low, high = 100 * one["low"], 100 * one["high"]
            yield (
                f"  {pass_k} against the other: {100 * one['value']:+.1f} points (95 %: {low:+.1f} to {high:+.1f}), "
                f"over {one['problems']:,} problems"
            )
    for title, key in (
        ("verdicts", "verdicts"),
        ("passed by rule", "rules"),
        ("programs found by", "extraction"),
        ("problems that cannot be judged", "problems_unusable"),
    ):
        if summary[key]:
            yield f"{title}: {', '.join(f'{name} {count:,}' for name, count in summary[key].items())}"
    if summary["references_failed"]:
        some = ", ".join(str(one["row"]) for one in summary["references_failed"][:20])
        yield f"no reference passes in {len(summary['references_failed']):,} problems, of rows {some}"


def _row(label: str, one: Mapping[str, Any], names: list[str]) -> str:
    cells = [f"{label[:_NAME]:{_NAME}}", f"{one['problems']:8,}", f"{one['samples']:8,}", f"{one['passed']:7,}"]
    for name in names:
        found = one.get(name)
        text = f"{100 * found['value']:.1f} % ({100 * found['low']:.1f}–{100 * found['high']:.1f})" if found else "–"
        cells.append(f"{text:>22}")
    return "  ".join(cells)
