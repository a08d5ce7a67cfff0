"""The loss weights of batches: who gets them, and what is said to those who may overlook them."""

import logging
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...schemas.rows import IGNORE_INDEX
from ..shards.arrow_shard import RowSpan

_LOG = logging.getLogger(__name__)


def hands_out(weighted: bool, wanted: bool | None) -> bool:
    """Whether batches have `loss_weights`. Warns if they have and the caller has not said that they are used.

    Args:
        weighted: whether some of the data has them.
        wanted: what the caller says: True, they are used; False, leave them out; None, nothing.
    """
    if weighted and wanted is None:
        _LOG.warning(
            "the data has loss_weights, and batches hand them out; model(**batch) ignores them and so trains another "
            "objective. Compute the loss with packtrain.training.weighted_loss and give loss_weights=True, or leave "
            "them out with loss_weights=False"
        )
    return weighted and wanted is not False


def weights_of(row: RowSpan) -> NDArray[np.float32]:
    """(T,) the weight of each token's label; 1 for every label if the dataset has no weights."""
    if row.loss_weights is not None:
        return row.loss_weights
    ones: NDArray[np.float32] = (row.labels != IGNORE_INDEX).astype(np.float32)
    return ones


def any_weighted(rows: Sequence[RowSpan]) -> bool:
    """Whether some of the rows have weights."""
    return any(row.loss_weights is not None for row in rows)
