"""The section of a report on lengths: what is lost at the configured one, the advice, and a table of all compared."""

from collections.abc import Callable

from ...schemas.report.length_choice import Choice, Point
from ...schemas.tables.strategies import CUTTING
from ...schemas.units import large, share
from .advised_length import lost_at
from .grid import Grid, Section
from .length_advice import (
    SHARING_FACTOR,
    count_documents,
    counted_tokens,
    describe_advice,
    describe_limit,
    describe_sharing,
    point_at,
)

QUESTION = "Which max_length?"
_COLUMNS: dict[str, Callable[[Point], str]] = {
    "trained lost": lambda point: share(lost_at(point), 2, fixed=True),
    "cut": lambda point: f"{point.documents_cut:,}",
    "left out": lambda point: f"{point.documents_lost:,}",
    "rows": lambda point: f"{point.rows:,}",
    "full": lambda point: share(point.fill, fixed=True),
    "tokens": lambda point: large(point.tokens),
}
"""The columns of a point."""
_OF_ROWS = ("rows", "full")
"""Columns that preference pairs have only if they are packed."""


def choice_section(choice: Choice) -> Section:
    """The comparison of lengths, and the advice."""
    configured = point_at(choice, choice.max_length)
    lost = share(lost_at(configured), 2) if lost_at(configured) else "none"
    parts = []
    if configured.documents_cut:
        parts.append(f"{configured.documents_cut:,} are cut")
    if configured.documents_lost:
        parts.append(f"{configured.documents_lost:,} are left out")
    documents = " No document is cut." if choice.pairs is None else " No pair is cut."
    if parts:
        documents = f" Of {count_documents(choice, choice.documents)}, {' and '.join(parts)}."
    longer_rows = choice.row_length > choice.max_length
    rows_of = f" in rows of {choice.row_length:,}" if longer_rows else ""
    sentence = (
        f"At {choice.max_length:,}{rows_of} with {choice.strategy}, {lost} of the {counted_tokens(choice)} is lost."
    )
    sentence += documents
    if choice.documents < choice.documents_in_all:
        sentence += f" That is from {choice.documents:,} of about {count_documents(choice, choice.documents_in_all)}."
    if advice := describe_advice(choice):
        sentence += f" Advice: {advice}"
    if sharing := describe_sharing(choice):
        sentence += f" {sharing}"
    advised = choice.advice.max_length if choice.advice is not None else None
    marks = {choice.max_length: "configured", advised: "advised"}
    if advised == choice.max_length:
        marks = {advised: "configured, advised"}
    columns = dict(_COLUMNS)
    if choice.pairs is not None and not choice.pairs.are_packed:
        columns = {name: column for name, column in columns.items() if name not in _OF_ROWS}
    shown = columns
    # Where all lengths have rows of their own, their capacity needs no column.
    if longer_rows:
        shown = {"rows of": lambda point: f"{point.row_length:,}", **shown}
    if any((point.sharing_factor or 1) >= SHARING_FACTOR for point in choice.points):
        key = choice.sharing.share if choice.sharing is not None else "row"
        shown = {**shown, f"with share={key}": lambda point: f"{point.sharing_factor or 1:.1f} times fewer"}
    rows = [
        [f"{point.max_length:,}", *(column(point) for column in shown.values()), marks.get(point.max_length, "")]
        for point in choice.points
    ]
    overlong = "" if choice.strategy in CUTTING else f", overlong: {choice.overlong}"
    grids = [Grid(f"At each length, with {choice.strategy}{overlong}", (choice.key, *shown, ""), rows)]
    if choice.other is not None:
        rows = [
            [point.strategy, *(column(point) for column in columns.values())] for point in (configured, choice.other)
        ]
        grids.append(Grid(f"Another strategy at {choice.max_length:,} saves rows", ("strategy", *columns), rows))
    if choice.longest:
        rows = [[id, f"{tokens:,}"] for id, tokens in choice.longest]
        kind = "documents" if choice.pairs is None else "pairs"
        grids.append(Grid(f"The longest {kind}; packtrain inspect --id shows one", ("example", "tokens"), rows))
    return Section("choice", QUESTION, sentence, grids, warnings=list(describe_limit(choice)))
