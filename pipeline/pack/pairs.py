"""Preference pairs: decides in the table which to keep. Each becomes one row; pairs are not packed together."""

import numpy as np
from numpy.typing import NDArray

from ...schemas.config.config import RunConfig
from ...stages.select.preference_limits import PairCut, PairLengths, cut_pairs
from .outcomes import decide_together, leave_out, leave_out_by_filters, limits_of
from .segments import Segments
from .table import Documents, Table, pair_lengths


def select_pairs(table: Table, config: RunConfig) -> None:
    """Decide about all pairs, in place.

    Raises:
        ConfigError: a weight asks for too many copies.
    """
    limits = limits_of(config, pairs=True)
    segments = Segments.of(table, config)
    for source, here in table.slices():
        some = table.documents.at(here)
        lengths = pair_lengths(segments.runs(some)[0])
        cut = cut_pairs(lengths, limits)
        whole, left = _equal(some, segments, lengths, cut)
        some.outcome[:] = 0
        leave_out(some, (lengths.chosen == 0) | (lengths.rejected == 0), "empty")
        leave_out(some, whole, "equal")
        leave_out_by_filters(some, lengths.longest, config, source)
        if config.truncate.overlong == "drop":
            leave_out(some, cut.overlong, "overlong")
        leave_out(some, (cut.kept.chosen == 0) | (cut.kept.rejected == 0), "cut_empty")
        leave_out(some, left, "cut_equal")
    decide_together(table, config)


def _equal(
    some: Documents, segments: Segments, lengths: PairLengths, cut: PairCut
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return (N,) whether both completions have the same tokens, and (N,) whether they have the same tokens after
    cutting.
    """
    whole, left = np.zeros(len(some), dtype=np.bool_), np.zeros(len(some), dtype=np.bool_)
    kept, begins, zeros = cut.kept, cut.begins, np.zeros_like(lengths.chosen)
    for suspects, chosen, rejected, size, out in (
        (lengths.chosen == lengths.rejected, zeros, zeros, lengths, whole),
        (kept.chosen == kept.rejected, begins.chosen, begins.rejected, kept, left),
    ):
        rows = np.flatnonzero(suspects)
        those, first, middle = some.at(rows), lengths.prompt[rows], (lengths.prompt + lengths.chosen)[rows]
        one = segments.tokens(those, first + chosen[rows], size.chosen[rows])
        other = segments.tokens(those, middle + rejected[rows], size.rejected[rows])
        out[rows] = [np.array_equal(a, b) for a, b in zip(one, other, strict=True)]
    return whole, left
