"""How alike the ranks' work is, rows as they are written and as the loader deals them."""

import numpy as np
from numpy.typing import NDArray

from ...schemas.report import Packing, RankBalance, Shape
from .rows_look import RowWeight

LOOKED_AT = 1 << 14
"""Rows whose steps are dealt: some tenths of a second."""
SHARES = (1, 8)
"""Rows a rank."""
_SEEN = 1.005
"""The slowest rank over the mean, from where on a reader sees that ranks wait."""


def balance_of(weight: RowWeight, shape: Shape, world_size: int, *, shuffled: bool) -> list[RankBalance]:
    """With one row a rank and with eight, as far as there are rows for a step.

    Args:
        shuffled: whether the rows were shuffled when they were packed; the loader reads its first epoch as it lies
            then, and in an order of its own else.
    """
    from ...training.balance import choose_balance, slowest
    from ...training.cost import ModelShape

    model = ModelShape(shape.parameters, shape.layers, shape.hidden)
    order = _order(len(weight.tokens), shuffled)
    plain = _costs(weight, order, model)
    sample = plain[: _sample()]
    dealt = _grouped(plain, order, choose_balance(sample).balance)
    out = []
    for share in SHARES:
        before = slowest(plain, world_size, share, dealt=False)
        after = slowest(dealt, world_size, share)
        if len(before):
            out.append(
                RankBalance(world_size, share, float(before.mean()), float(after.mean()), float(after.max(initial=1.0)))
            )
    return out


def balance_note(packing: Packing) -> str | None:
    """Why dealing changes nothing with one row a rank, where it does not though ranks wait."""
    from ...training.balance import GROUP, IDLE

    one = next((each for each in packing.balance if each.rows_each == 1), None)
    if one is None or one.balanced < one.plain or one.plain < _SEEN:
        return None
    rows = max(packing.splits, key=lambda each: (each.split == "train", each.rows)).rows
    return (
        f"With one row a rank, nothing can be dealt. Rows of like cost are put into one step only where that gains "
        f"enough: from {4 * GROUP:,} rows on (here {rows:,}), and where the slowest of {GROUP} ranks would take more "
        f"than {IDLE:.2f} × the mean."
    )


def _sample() -> int:
    from ...training.balance import SAMPLE

    return SAMPLE


def _order(rows: int, shuffled: bool) -> NDArray[np.int64]:
    """The first rows of the loader's first epoch, by seed 0, before rows of like cost are grouped."""
    from ...training.order import EpochOrder, Order

    if not rows:
        return np.zeros(0, np.int64)
    return EpochOrder(rows, 0, Order.FULL, shuffled)(0, min(rows, LOOKED_AT))


def _costs(weight: RowWeight, rows: NDArray[np.int64], model: object) -> NDArray[np.float64]:
    from ...training.cost import ModelShape, weigh

    assert isinstance(model, ModelShape)
    return weigh(weight.tokens[rows], weight.squares[rows], model)


def _grouped(costs: NDArray[np.float64], order: NDArray[np.int64], balance: object) -> NDArray[np.float64]:
    """The costs as `training.stream.RowStream` orders the rows."""
    from ...training.balance import Balance, grouped
    from ...training.order import epoch_key

    if not isinstance(balance, Balance):
        return costs
    of_row = dict(zip(order.tolist(), costs.tolist(), strict=True))
    out = []
    for block, begin in enumerate(range(0, len(order), balance.block)):
        here = slice(begin, begin + balance.block)
        rows = grouped(order[here], costs[here], balance, epoch_key(0, block, "groups"), begin)
        out.append(np.array([of_row[row] for row in rows.tolist()]))
    return np.concatenate(out) if out else costs
