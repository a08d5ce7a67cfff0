"""The packing report: every number that its page, its terminal summary and its JSON file show.

Legend as in `rows.py`: `C` capacity of a row. Tokens, labels and rows are counts; shares are 0 to 1; times are seconds.
Every section has one plain `sentence`, and is None where it cannot be told, for which `Report.absent` says why.
"""

from .batch import BatchSize, Recipe
from .choice import Advice, Choice, Point, SourceLoss
from .flow import Fate, Flow, Link, Reject
from .histogram import Histogram
from .packing import Packing, RankBalance, Saving, SplitPacking
from .shape import Shape
from .training import ShownDocument, ShownPair, ShownPiece, ShownRow, ShownText, SourceShare, Training
from .trust import Input, Stage, Trust
from .whole import FORMAT, Report, Sample

__all__ = [
    "FORMAT",
    "Advice",
    "BatchSize",
    "Choice",
    "Fate",
    "Flow",
    "Histogram",
    "Input",
    "Link",
    "Packing",
    "Point",
    "RankBalance",
    "Recipe",
    "Reject",
    "Report",
    "Sample",
    "Saving",
    "Shape",
    "ShownDocument",
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
