"""A few documents that are far longer than all others, and alone would make the advised length so long."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .....schemas.config.config import RunConfig
from .....schemas.units import plural, share
from .....stages.forecast.length_stats import LengthStats
from .....stages.select.truncate import Keep

FEW, FEW_SHARE, FEW_AT_MOST = 2, 0.001, 0.05
"""So many long documents do not count if they are far longer than the others: two, or this share of all documents if
that is more; but never more than the last share.
"""
NAMED = 3
"""Maximum number of them that are named."""
FAR = 4
"""If the advised length is more than this many times the length that splitting needs, the report says that only few
documents need it. The few long documents that do not count are those longer than the length they need, divided by this.
"""


@dataclass(frozen=True, slots=True)
class FarDocuments:
    """Documents that are far longer than all others."""

    count: int
    named: str
    """The id and tokens of each, the longest first; of many, or if the ids are unknown, the tokens of the longest."""
    needs: int | None
    """The length that they need; None if it is above all compared lengths."""
    labels: int
    kept: dict[int, int]
    """Their labels that each compared length keeps."""

    def reason(self, total: int) -> str:
        """What they hold and need, and what can be done about them.

        Args:
            total: trained tokens of all documents.
        """
        one = self.count == 1
        need = f"{self.needs:,}" if self.needs is not None else "more than any compared length"
        return (
            f"{plural(self.count, 'document')} ({self.named}) {'holds' if one else 'hold'} "
            f"{share(self.labels / total)} of the trained tokens and would alone need {need}. Check whether "
            f"{'it belongs' if one else 'they belong'} in the data: after a run, packtrain inspect --id shows one. "
            f"truncate.overlong: split keeps {'it' if one else 'them'}, in pieces."
        )


def far_documents(
    stats: LengthStats, needs: int | None, compared: Sequence[int], config: RunConfig
) -> FarDocuments | None:
    """The few documents that alone make the length so long; None if there are none.

    Args:
        needs: the length that all documents need; None if it is above all compared lengths.
        compared: the compared lengths, ascending.
    """
    others = (needs or compared[-1]) // FAR
    far = np.flatnonzero(stats.lengths > others)
    every = len(stats.lengths)
    if not 0 < len(far) <= min(max(FEW, FEW_SHARE * every), FEW_AT_MOST * every):
        return None
    mine = np.isin(stats.owners, far)
    owners = np.searchsorted(far, stats.owners[mine]).astype(np.int32)
    found = LengthStats(stats.lengths[far], owners, stats.begins[mine], stats.ends[mine])
    kept = dict[int, int]()
    for length in compared:
        labels = found.cut(length, Keep(config.truncate.keep))[1]
        whole = found.lengths <= length
        kept[length] = int(labels[whole].sum() if config.truncate.overlong == "drop" else labels.sum())
    named = [f"{id}, {tokens:,} tokens" for id, tokens in stats.longest if tokens > others]
    if not named or len(far) > NAMED:
        named = [f"{'of' if len(far) == 1 else 'the longest has'} {int(found.lengths.max()):,} tokens"]
    return FarDocuments(len(far), "; ".join(named), needs, found.labels, kept)
