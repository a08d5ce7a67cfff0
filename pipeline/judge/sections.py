"""What an evaluation found, as questions with answers and tables: for the terminal and for the page."""

from collections.abc import Sequence

from ...schemas.reasons import REASONS
from ...schemas.units import UNTOLD, plural, share
from ...stages.judge.comparators import Comparator
from ...stages.judge.extraction import Extraction
from ...stages.judge.passk import Estimate, PairedDifference
from ...stages.judge.scores import ALL, GroupScore
from ...stages.judge.verdicts import Rule, Verdict
from ..report.draw.blocks import Block, Grid, PageSection, Words
from .calibration import References
from .summary import STRICTER, Summary, for_display

_SHOWN_REFERENCES = 200
_UNSAFE = "Programs ran WITHOUT a sandbox."
_CELL = 160
"""Characters of a text from a program in a table."""


def sections(summary: Summary) -> list[PageSection]:
    """The questions that this evaluation answers, the most important first."""
    summary = for_display(summary)
    found = [_references_pass(summary) if summary.of_references else _passed(summary)]
    if summary.compared:
        found.append(_compared(summary))
    found += [_verdicts(summary), _judged(summary)]
    if summary.references:
        found.append(_references(summary))
    return [*found, _ran(summary)]


def percent(value: float) -> str:
    """A share for tables."""
    return share(value, fixed=True)


def interval(one: Estimate | PairedDifference) -> str:
    """`10.1 to 14.7 %`, or with signs for a difference."""
    if isinstance(one, PairedDifference):
        return f"{_points(one.low)} to {_points(one.high)}"
    return f"{100 * one.low:.1f} to {100 * one.high:.1f} %"


def _points(value: float) -> str:
    return f"{100 * value:+.1f}".replace("-", "−")


def _passed(summary: Summary) -> PageSection:
    whole = summary.scores[0]
    said = [
        f"pass@{k} is {share(one.value)}, with 95 % confidence between {100 * one.low:.1f} and {100 * one.high:.1f} %"
        for k, one in list(whole.estimates.items())[:1]
    ] or ["No problem has enough samples"]
    said.append(f"over {plural(whole.problems, 'problem')} and {plural(whole.samples, 'sample')}.")
    blocks: list[Block] = [score_grid("pass@k by difficulty", summary.scores, summary.ks)]
    if summary.calibrated is not None:
        title = "Only problems for which a reference solution passes"
        blocks.append(score_grid(title, summary.calibrated, summary.ks))
    return PageSection("pass", "How many problems are solved?", " ".join(said), [*blocks, *_left_out(summary)])


def _references_pass(summary: Summary) -> PageSection:
    whole = summary.scores[0]
    usable = sum(one.usable for one in summary.references.values())
    said = (
        f"{usable:,} of {plural(len(summary.references), 'problem')} have a program of their own that passes; "
        f"{whole.passed:,} of {plural(whole.samples, 'program')} do ({percent(whole.passed / max(whole.samples, 1))})."
    )
    rows = []
    for one in summary.scores:
        members = [two for two in summary.references.values() if one.name in (ALL, two.difficulty)]
        counts = [sum(summary.rules[one.name][rule] for rule in STRICTER[by]) for by in _comparators(summary)]
        rows.append(
            [one.name, f"{len(members):,}", f"{sum(two.usable for two in members):,}", f"{one.samples:,}",
             *(percent(count / one.samples) if one.samples else UNTOLD for count in counts)]
        )  # fmt: skip
    head = [
        "",
        "problems",
        "with a passing program",
        "programs",
        *(f"pass, {one.value}" for one in _comparators(summary)),
    ]
    blocks: list[Block] = [Grid("The data's own programs, by comparator", head, rows)]
    return PageSection("pass", "Do the data's own programs pass?", said, [*blocks, *_left_out(summary)])


def _comparators(summary: Summary) -> list[Comparator]:
    """The comparators of which this evaluation knows what they would accept: those stricter than its own."""
    own = Comparator(summary.identity["comparator"])
    nested = list(STRICTER)
    return nested[: nested.index(own) + 1] if own in nested else [own]


def score_grid(title: str, scores: Sequence[GroupScore], ks: Sequence[int]) -> Grid:
    """pass@k with intervals, a group a row."""
    head = ["", "problems", "samples", *(word for k in ks for word in (f"pass@{k}", "95 % interval"))]
    rows = []
    for one in scores:
        cells = [one.name, f"{one.problems:,}", f"{one.samples:,}"]
        for k in ks:
            found = one.estimates.get(k)
            cells += [percent(found.value), interval(found)] if found else [UNTOLD, UNTOLD]
        rows.append(cells)
    return Grid(title, head, rows)


def _compared(summary: Summary) -> PageSection:
    rows = [
        [name, f"pass@{k}", f"{one.problems:,}", f"{_points(one.value)} points", interval(one), f"{one.p:.3g}"]
        for name, by_k in summary.compared.items()
        for k, one in by_k.items()
    ]
    first = next(iter(summary.compared.get(ALL, {}).items()), None)
    said = "The two have no problem in common."
    if first is not None:
        k, one = first
        chance = "more than chance would give" if one.p < 0.05 else "no more than chance could give"
        said = (
            f"pass@{k} differs by {_points(one.value)} percentage points from {summary.compared_with} "
            f"(95 % interval {interval(one)}): {chance}, p = {one.p:.3g}."
        )
    head = ("", "", "problems", "difference", "95 % interval", "p")
    return PageSection(
        "compared", "Is it better than the other?", said,
        [Grid("This evaluation minus the other, on the problems of both", head, rows, text_columns=2)],
    )  # fmt: skip


def _verdicts(summary: Summary) -> PageSection:
    names = [one for one in Verdict if summary.verdicts[ALL][one]]
    rows = []
    for group, counts in summary.verdicts.items():
        whole = max(counts.total(), 1)
        rows.append(
            [group, f"{counts.total():,}", *(f"{counts[one]:,} ({percent(counts[one] / whole)})" for one in names)]
        )
    counts = summary.verdicts[ALL]
    failed = [(one, counts[one]) for one in names if one is not Verdict.passed]
    failed.sort(key=lambda item: -item[1])
    most = f"; the most frequent failure is “{failed[0][0]}”, {failed[0][1]:,}" if failed else ""
    what = "program" if summary.of_references else "sample"
    said = f"{counts[Verdict.passed]:,} of {plural(counts.total(), what)} passed all tests{most}."
    return PageSection(
        "verdicts", "What became of the programs?", said, [Grid("Verdicts", ["", f"{what}s", *names], rows)]
    )


def _judged(summary: Summary) -> PageSection:
    counts = summary.rules[ALL]
    passed = max(counts.total(), 1)
    rules = [[one.value, f"{counts[one]:,}", percent(counts[one] / passed)] for one in Rule if counts[one]]
    whole = max(summary.extraction.total(), 1)
    found = [
        [one.value, f"{summary.extraction[one]:,}", percent(summary.extraction[one] / whole)]
        for one in Extraction if summary.extraction[one]
    ]  # fmt: skip
    said = f"Outputs were compared by {summary.identity['comparator']}."
    blocks: list[Block] = []
    if rules:
        blocks.append(
            Grid("Programs that passed, by the loosest rule that a test needed", ["rule", "programs", ""], rules)
        )
    if not summary.of_references:
        blocks.append(Grid("How the program was found in the answer", ["rule", "answers", ""], found))
    return PageSection("judged", "By which rules?", said, blocks)


def _references(summary: Summary) -> PageSection:
    failing = [one for one in summary.references.values() if not one.usable]
    said = f"Each of the {plural(len(summary.references), 'problem')} with references has one that passes."
    if failing:
        said = (
            f"Of {plural(len(summary.references), 'problem')} with references, {len(failing):,} "
            f"{'has' if len(failing) == 1 else 'have'} none that passes: what they ask for may not be what they test."
        )
    programs = sum(one.references for one in summary.references.values())
    failed = programs - sum(one.passed for one in summary.references.values())
    if failed and summary.calibration_page:
        fail = "fails" if failed == 1 else "fail"
        said += f" {failed:,} of {plural(programs, 'reference')} {fail}; {summary.calibration_page} shows why."
    rows = [
        [one.id, one.difficulty, f"{one.references:,}", one.reason, _why(one)] for one in failing[:_SHOWN_REFERENCES]
    ]
    blocks: list[Block] = []
    if rows:
        head = ("problem", "difficulty", "references", "most fail by", "such as")
        blocks.append(Grid("Problems whose references fail", head, rows, folded=len(rows) > 20, text_columns=5))
    if len(failing) > _SHOWN_REFERENCES:
        blocks.append(Words(f"and {len(failing) - _SHOWN_REFERENCES:,} more; results.jsonl has all of them"))
    return PageSection("references", "Can the tests be passed?", said, blocks)


def _why(one: References) -> str:
    if one.example is None:
        return ""
    outcome = one.example.outcome
    lines = outcome.detail.strip().splitlines()
    text = lines[-1] if lines else f"gave {outcome.actual.strip()}" if outcome.actual is not None else ""
    text = f"test {outcome.failed_test + 1}: {text}" if outcome.failed_test is not None else text
    return text if len(text) <= _CELL else f"{text[:_CELL]}…"


def _ran(summary: Summary) -> PageSection:
    limits = summary.identity["limits"]
    rows = [
        ["sandbox", summary.sandbox],
        ["samples", summary.title],
        ["data", summary.data],
    ]
    rows += [[name.replace("_", " "), f"{value:,}"] for name, value in limits.items()]
    rows += [["stops at the first test that fails", "no" if summary.identity["all_tests"] else "yes"]]
    rows += [[f"BLAKE3 of the {name}", str(summary.identity[name])] for name in ("data", "samples")]
    said = _UNSAFE if summary.identity["sandbox"] == "unsafe" else f"Programs ran in {summary.sandbox}."
    return PageSection("ran", "What ran, and on what?", said, [Grid("", ("", ""), rows, text_columns=2)])


def _left_out(summary: Summary) -> list[Words]:
    """What the numbers do not cover."""
    said = []
    for reason, count in sorted(summary.unusable.items()):
        said.append(f"Left out: {plural(count, 'problem')} of the data ({reason}). {REASONS[reason]}")
    if summary.without_samples and not summary.of_references:
        said.append(f"Left out: {plural(summary.without_samples, 'problem')} without samples.")
    least, most = summary.samples_each
    if least < most and not summary.of_references:
        said.append(f"Problems have {least:,} to {most:,} samples; each problem counts the same, however many it has.")
    if summary.machine_failures:
        failed = plural(summary.machine_failures, "program" if summary.of_references else "sample")
        said.append(f"Left out: {failed}, because the sandbox failed; the same command tries again.")
    if summary.identity["sandbox"] == "unsafe":
        said.append(_UNSAFE)
    return [Words(one, style="yellow") for one in [*said, *summary.notes]]
