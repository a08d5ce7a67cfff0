"""The numbers of a finished evaluation: what the terminal, the page, `--json` and `summary.json` show."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ...stages.judge.comparators import Comparator
from ...stages.judge.extraction import Extraction
from ...stages.judge.passk import PairedDifference
from ...stages.judge.scores import ALL, GroupScore, ProblemTally, compare, difficulties, scores
from ...stages.judge.verdicts import Rule, Verdict
from .calibration import References
from .evaluation import Evaluation
from .judging import Judgement
from .problem_file import ProblemFile
from .results_file import SampleResult

Results = Mapping[tuple[int, int], SampleResult]
STRICTER = {
    Comparator.exact: frozenset({Rule.exact, Rule.value, Rule.wrapped}),
    Comparator.tokens: frozenset({Rule.exact, Rule.tokens, Rule.value, Rule.wrapped}),
    Comparator.tokens_numbers: frozenset(Rule),
}
"""Comparator → the rules that it has, for what it would have accepted."""


@dataclass(frozen=True, slots=True)
class Summary:
    """An evaluation in numbers."""

    title: str
    """The samples file's name, or that the data's own programs ran."""
    data: str
    """The data file's name."""
    of_references: bool
    sandbox: str
    """Its name and version."""
    identity: Mapping[str, Any]
    """See `Evaluation.identity`."""
    ks: tuple[int, ...]
    scores: Sequence[GroupScore]
    """All problems, then each difficulty."""
    calibrated: Sequence[GroupScore] | None
    """The same over problems for which a reference passes; None without a calibration."""
    verdicts: Mapping[str, Counter[Verdict]]
    """Group → verdict → samples."""
    rules: Mapping[str, Counter[Rule]]
    """Group → rule → samples that passed and needed it, as the loosest."""
    extraction: Counter[Extraction]
    unusable: Counter[str]
    """Problems of the data that cannot be judged, by reason."""
    without_samples: int
    """Problems that can be judged, and have no sample."""
    references: Mapping[int, References] = field(default_factory=dict)
    """Row → what became of its references; empty without a calibration."""
    compared: Mapping[str, Mapping[int, PairedDifference]] = field(default_factory=dict)
    """Group → k → the difference from another evaluation; empty without one."""
    compared_with: str = ""
    notes: Sequence[str] = ()
    samples_each: tuple[int, int] = (0, 0)
    """The least and the most samples that count of a problem."""
    calibration_page: str = ""
    """The page of the calibration, from the folder of this evaluation; empty without one."""

    @property
    def machine_failures(self) -> int:
        """Samples that are left out because the sandbox failed."""
        return self.verdicts[ALL][Verdict.machine_failure]


def summarise(
    evaluation: Evaluation,
    results: Results,
    ks: tuple[int, ...],
    title: str,
    references: Mapping[int, References] | None = None,
    other: Results | None = None,
    other_name: str = "",
    notes: Sequence[str] = (),
    calibration_page: str = "",
) -> Summary:
    """The numbers of an evaluation.

    Args:
        references: a calibration of the same data, or None.
        other: another evaluation of the same data, to compare with, or None.
    """
    problems = evaluation.problems
    tallied = tally(results, problems)
    of_references = evaluation.samples_hash is None
    calibrated = None
    if references is not None and not of_references:
        usable = {row: one for row, one in tallied.items() if row in references and references[row].usable}
        calibrated = scores(usable, ks)
    groups = _outcomes(results, problems)
    counts = [one.samples for one in tallied.values()]
    judged = {row for row, head in problems.heads.items() if head.unusable is None}
    return Summary(
        title,
        problems.path.name,
        of_references,
        f"{evaluation.sandbox.name} {evaluation.sandbox.version}".strip(),
        evaluation.identity(),
        ks,
        scores(tallied, ks),
        calibrated,
        {name: Counter(one.verdict for one in members) for name, members in groups.items()},
        {name: Counter(one.rule for one in members if one.rule) for name, members in groups.items()},
        Counter(one.about.extraction for one in results.values()),
        problems.unusable,
        len(judged - {row for row, _ in results}),
        references or {},
        compare(tallied, tally(other, problems), ks) if other is not None else {},
        other_name,
        [one for one in (evaluation.sandbox.note, *notes) if one is not None],
        (min(counts, default=0), max(counts, default=0)),
        calibration_page,
    )


def for_display(summary: Summary) -> Summary:
    """Without the only difficulty, where all problems are of one: it would repeat every number."""
    names = list(summary.verdicts)
    if len(names) != 2 or summary.verdicts[names[0]].total() != summary.verdicts[names[1]].total():
        return summary
    calibrated = summary.calibrated[:1] if summary.calibrated is not None else None
    compared = {name: found for name, found in summary.compared.items() if name == ALL}
    verdicts = {ALL: summary.verdicts[ALL]}
    return replace(summary, scores=summary.scores[:1], calibrated=calibrated, verdicts=verdicts, compared=compared)


def tally(results: Results, problems: ProblemFile) -> dict[int, ProblemTally]:
    """Row → how many samples count and how many passed; failures of the machine do not count."""
    found: dict[int, ProblemTally] = {}
    for (row, _), result in sorted(results.items()):
        one = found.setdefault(row, ProblemTally(problems.heads[row].difficulty))
        if result.outcome.verdict is not Verdict.machine_failure:
            one.samples += 1
            one.passed += result.outcome.verdict is Verdict.passed
    return found


def _outcomes(results: Results, problems: ProblemFile) -> dict[str, list[Judgement]]:
    """Group → what became of its samples."""
    found: dict[str, list[Judgement]] = {ALL: [one.outcome for one in results.values()]}
    for name in difficulties([problems.heads[row].difficulty for row, _ in results]):
        if name != ALL:
            found[name] = [one.outcome for (row, _), one in results.items() if problems.heads[row].difficulty == name]
    return found


# As JSON


def scores_json(summary: Summary) -> dict[str, dict[str, Any]]:
    """What `--json` prints: group → pass@k, intervals and counts."""
    calibrated = {one.name: one for one in summary.calibrated or ()}
    found = {}
    for one in summary.scores:
        entry = _score(one)
        if summary.calibrated is not None:
            entry["references_pass"] = _score(calibrated.get(one.name, GroupScore(one.name, 0, 0, 0)))
        if one.name in summary.compared:
            entry["compared"] = {f"pass@{k}": asdict(two) for k, two in summary.compared[one.name].items()}
        if summary.references:
            members = [two for two in summary.references.values() if one.name in (ALL, two.difficulty)]
            entry["references"] = {
                "problems": len(members),
                "problems_passed": sum(two.usable for two in members),
                "programs": sum(two.references for two in members),
                "programs_passed": sum(two.passed for two in members),
            }
        entry["machine_failures"] = summary.verdicts[one.name][Verdict.machine_failure]
        found[one.name] = entry
    return found


def _score(score: GroupScore) -> dict[str, Any]:
    return {
        **{f"pass@{k}": one.value for k, one in score.estimates.items()},
        "problems": score.problems,
        "samples": score.samples,
        "passed": score.passed,
        "intervals": {
            f"pass@{k}": {"low": one.low, "high": one.high, "problems": one.problems}
            for k, one in score.estimates.items()
        },
    }


def summary_json(summary: Summary) -> dict[str, Any]:
    """What `summary.json` holds."""
    return {
        "samples": summary.title,
        "data": summary.data,
        "sandbox": summary.sandbox,
        "evaluation": dict(summary.identity),
        "scores": scores_json(summary),
        "verdicts": {name: _named(counts) for name, counts in summary.verdicts.items()},
        "rules": _named(summary.rules[ALL]),
        "extraction": _named(summary.extraction),
        "problems_unusable": dict(sorted(summary.unusable.items())),
        "problems_without_samples": summary.without_samples,
        "references_failed": [
            {"row": one.row, "id": one.id, "difficulty": one.difficulty, "references": one.references,
             "reason": one.reason}
            for one in summary.references.values()
            if not one.usable
        ],
        "compared_with": summary.compared_with,
        "notes": list(summary.notes),
    }  # fmt: skip


def _named(counts: Mapping[Any, int]) -> dict[str, int]:
    return {str(name): counts[name] for name in sorted(counts, key=str)}
