"""The runs of a part's documents, with the mask applied to them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...stages.arrays import booleans, view
from ...stages.mask.policy import Mask, supervised_runs
from ..encode.parts import Segment


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """The runs of the K documents of a segment; see `schemas.rows.RUN`."""

    ends: NDArray[np.int32]
    kind: NDArray[np.int8]
    turn: NDArray[np.int16]
    supervised: NDArray[np.bool_]
    """Whether the mask trains each."""
    weights: NDArray[np.float32] | None
    """The loss weight of the tokens of each; None if all are 1."""
    offsets: NDArray[np.integer[Any]]
    """(K + 1,) where each document's runs begin."""

    @classmethod
    def of(cls, batch: pa.RecordBatch, mask: Mask) -> "Runs":
        """The runs of a segment."""
        column = batch.column("runs")
        ends, kind, turn = (view(column.values.field(name)) for name in ("end", "kind", "turn"))
        offsets = view(column.offsets)
        supervised = supervised_runs(kind, turn, booleans(column.values.field("train")), offsets, mask)
        weighs = len(batch.column("weights").values) > 0
        return cls(ends, kind, turn, supervised, Segment.of(batch, mask).weights if weighs else None, offsets)
