"""The ledger as a table, for terminal, page and card."""

from collections.abc import Iterator, Sequence

from ...schemas.ledger import NOT_DRAWN, Ledger, SourceLedger
from .grid import Grid

_SOURCES = 4
"""Maximum number of sources that have a column of their own."""
_LINES = (
    ("bold", "rows read", "rows_read"),
    ("", "  used", "rows_used"),
    ("dim", "  rejected", "rows_rejected"),
    ("dim", "  filtered", "rows_filtered"),
    ("dim", "  blank", "rows_blank"),
    ("bold", "examples made", "examples_made"),
    ("dim", "  packed", "examples_packed"),
    ("dim", "  dropped", "examples_dropped"),
    ("dim", "  never made", "examples_skipped"),
    ("", "  of these, in evaluation rows", "examples_contaminated"),
    ("dim", "  of these, further copies", "examples_repeated"),
    ("dim", "  copies in a row with another one", "copies_together"),
    ("dim", "  of these, truncated", "examples_truncated"),
    ("dim", "  of these, in pieces", "examples_split"),
    ("dim", "  of these, without a label", "examples_without_labels"),
    ("bold", "tokens encoded", "tokens_encoded"),
    ("dim", "  created", "tokens_created"),
    ("red", "  truncated", "tokens_truncated"),
    ("dim", "  dropped", "tokens_dropped"),
    ("", "  packed", "tokens_packed"),
    ("bold green", "labels trained", "labels_trained"),
    ("bold green", "  sum of loss weights", "weight_trained"),
    ("dim", "  lost at heads of pieces", "labels_head"),
    ("dim", "  masked", "labels_not_asked"),
    ("dim", "turns trained", "turns_trained"),
    ("dim", "  without an end-of-turn token", "turns_without_end"),
    ("dim", "  ended by the next header", "turns_stop_next"),
    ("dim", "cuts through trained turns", "turns_cut"),
    ("dim", "tokens across a boundary", "straddles"),
    ("dim", "  left out by the template", "template_dropped"),
    ("dim", "  unknown role", "unknown_roles"),
)
"""(style in a terminal, words, field of `SourceLedger`); inner lines are indented. One by reason has
a line a reason.
"""


def ledger_grid(ledger: Ledger) -> Grid:
    """Counts of rows, examples, tokens and labels, without lines of zeros: by source and in total, or only in total of
    many sources.
    """
    names, caption = list(ledger.sources), "Ledger"
    if len(names) > _SOURCES:
        names, caption = [], f"Ledger of {len(names):,} sources; report.json has each one"
    columns = [ledger.sources[name] for name in names]
    if len(names) != 1:
        names, columns = [*names, "all"], [*columns, ledger.total()]
    lines = [(style, *line) for style, words, field in _LINES for line in _lines(words, field, columns)]
    rows = [[words, *(f"{_short(value):,}" for value in values)] for _, words, values in lines]
    return Grid(caption, ("", *names), rows, styles=[style for style, *_ in lines])


def _lines(words: str, field: str, columns: Sequence[SourceLedger]) -> Iterator[tuple[str, list[float]]]:
    """(words, values) of a field with a value that is not 0."""
    values = [getattr(column, field) for column in columns]
    every: dict[str, list[float]] = {words: values}
    if isinstance(values[0], dict):
        every = {
            f"{'  not drawn' if key == NOT_DRAWN else words}: {key}": [value.get(key, 0) for value in values]
            for key in sorted({key for value in values for key in value})
        }
    elif field == "weight_trained":  # the last column is the sum of all sources, or the only one
        every["  of the loss, in %"] = [100 * value / (values[-1] or 1.0) for value in values]
    yield from ((line, numbers) for line, numbers in every.items() if any(numbers))


def _short(value: float) -> float:
    """With six digits; whole numbers as such."""
    return int(value) if value == int(value) else float(f"{value:.6g}")
