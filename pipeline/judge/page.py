"""The page of an evaluation, by the template of the report, which escapes every text."""

from collections.abc import Mapping
from typing import Any

from ...schemas.units import plural
from ...stages.judge.comparators import Verdict
from ..report.grid import Grid, Section
from ..report.page import page_html
from .results import Results, SampleResult
from .summary import lines, table

_EACH = 3
"""Failures that are shown of each verdict."""


def evaluation_page(
    data: str, summary: Mapping[str, Any], results: Results, programs: Mapping[tuple[int, int], str]
) -> bytes:
    """One file of HTML, without scripts.

    Args:
        data: the name of the data's file.
        programs: (row, sample) → its program.
    """
    scores = summary["scores"]["all"]
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
    rows = [("program", code), ("what came out", one.actual or ""), ("errors", one.detail)]
    test = f" in test {one.failed_test}" if one.failed_test is not None else ""
    name = f"{one.id[:100]}, sample {one.sample}: {one.verdict}{test}"
    return Grid(name, ("", "text"), [(what, text[:4_000]) for what, text in rows if text], text_columns=2)
