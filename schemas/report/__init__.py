"""The packing report: every number that its page, its terminal summary and its JSON file show.

Legend as in `rows.py`: `C` capacity of a row. Tokens, labels and rows are counts; shares are 0 to 1; times are seconds.
Every section has one plain `sentence`, and is None if it is not available; `Report.absent` says why.
"""

from .batch import BatchRecipe, BatchSize
from .choice import Advice, Choice, Point, SourceLoss
from .flow import Flow, LedgerFlow, Link, Reject
from .histogram import Histogram
from .overlap import Overlap, OverlapCount, OverlapPiece, ShownOverlap
from .packing import Packing, PaddingCost, RankBalance, Saving, SplitPacking
from .shape import ReportShape
from .training import KindCount, ShownDocument, ShownPair, ShownPiece, ShownRow, ShownText, SourceShare, Training
from .trust import Input, Stage, Trust
from .whole import FORMAT, Report, Sample

__all__ = [
    "FORMAT",
    "Advice",
    "BatchRecipe",
    "BatchSize",
    "Choice",
    "Flow",
    "Histogram",
    "Input",
    "KindCount",
    "LedgerFlow",
    "Link",
    "Overlap",
    "OverlapCount",
    "OverlapPiece",
    "Packing",
    "PaddingCost",
    "Point",
    "RankBalance",
    "Reject",
    "Report",
    "ReportShape",
    "Sample",
    "Saving",
    "ShownDocument",
    "ShownOverlap",
    "ShownPair",
    "ShownPiece",
    "ShownRow",
    "ShownText",
    "SourceLoss",
    "SourceShare",
    "SplitPacking",
    "Stage",
    "Training",
    "Trust",
]
