"""The numbers of an evaluation: what `summary.json` and `--json` hold, and the lines for the terminal."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from ...stages.judge.comparators import Verdict
from ...stages.judge.passk import ProblemTally, compare, groups, scores
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
    tallies = tally(results, problems)
    found: dict[str, Any] = {name: _counts(tallies, rows) for name, rows in groups(tallies).items()}
    parts: list[tuple[str | None, Any]] = [(None, scores(tallies, ks))]
    failing: list[dict[str, Any]] = []
    if calibration is not None:
        usable = {row for (row, _), one in calibration.items() if one.outcome.verdict is Verdict.passed}
        kept = {row: one for row, one in tallies.items() if row in usable}
        parts.append(("calibrated", scores(kept, ks)))
        for name, rows in groups(kept).items():
            found[name]["calibrated"] = _counts(kept, rows)
        failing = [
            {"row": row, "id": problems.heads[row].id} for row in sorted({row for row, _ in calibration} - usable)
        ]
    if other is not None:
        parts.append(("compared", compare(tallies, tally(other, problems), ks)))
    for part, made in parts:
        for name, estimates in made.items():
            entry = found[name] if part is None else found[name].setdefault(part, {})
            entry.update({f"pass@{k}": asdict(one) for k, one in estimates.items()})
    judged = [row for row, head in problems.heads.items() if head.unusable is None]
    return {
        "evaluation": dict(identity),
        "scores": found,
        "verdicts": _counted(one.outcome.verdict for one in results.values()),
        "rules": _counted(one.outcome.rule for one in results.values() if one.outcome.rule),
        "extraction": _counted(one.about.extraction for one in results.values()),
        "problems_unusable": _counted(head.unusable for head in problems.heads.values() if head.unusable),
        "problems_without_samples": len(set(judged) - set(tallies)),
        "references_failed": failing,
    }


def tally(results: Results, problems: ProblemFile) -> dict[int, ProblemTally]:
    """Row → how many samples there are and how many passed."""
    found: dict[int, ProblemTally] = {}
    for (row, _), result in sorted(results.items()):
        one = found.setdefault(row, ProblemTally(problems.heads[row].difficulty))
        one.samples += 1
        one.passed += result.outcome.verdict is Verdict.passed
    return found


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


def _counts(tallies: Mapping[int, ProblemTally], rows: list[int]) -> dict[str, Any]:
    members = [tallies[row] for row in rows]
    return {
        "problems": len(members),
        "problems_passed": sum(one.passed > 0 for one in members),
        "samples": sum(one.samples for one in members),
        "passed": sum(one.passed for one in members),
    }


def _counted(names: Any) -> dict[str, int]:
    return {str(name): count for name, count in Counter(names).most_common()}
