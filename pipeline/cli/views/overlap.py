"""What training data shares with evaluation data, as a table."""

from ...contamination.summary import OverlapSummary
from ...report.draw.blocks import Grid


def overlap_grid(summary: OverlapSummary) -> Grid:
    """Examples by source and evaluation file, each by its strongest match."""
    rows = [
        [
            source,
            file,
            *(f"{number:,}" for number in (one.examples, one.whole, one.near_whole, one.ngram, len(one.rows))),
        ]
        for (source, file), one in summary.totals.items()
    ]
    head = ("source", "evaluation file", "examples", "whole", "near-whole", "n-gram", "evaluation rows")
    return Grid("Examples that share text with evaluation rows", head, rows, text_columns=2)
