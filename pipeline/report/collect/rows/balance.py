"""How evenly ranks share the work: with rows in written order, and as the loader assigns them."""

import numpy as np
from numpy.typing import NDArray

from .....schemas.report import Packing, RankBalance, ReportShape
from .look import RowWeight

LOOKED_AT = 1 << 14
"""Rows whose steps are simulated, which takes a few tenths of a second."""
SHARES = (1, 8)
"""Rows per rank to simulate."""
_SEEN = 1.005
"""Ratio of the slowest rank to the mean from which the report shows waiting."""


def balance_of(weight: RowWeight, shape: ReportShape, world_size: int, *, shuffled: bool) -> list[RankBalance]:
    """The balance with one row per rank and with eight, if there are enough rows for a step.

    Args:
        shuffled: whether packing shuffled the rows. If so, the loader reads its first epoch in file order.
    """
    from .....training.steps import choose_balance, slowest

    order = _order(len(weight.tokens), shuffled)
    plain = shape.model.weigh(weight.tokens[order], weight.squares[order])
    sample = plain[: _sample()]
    dealt = _grouped(plain, order, choose_balance(sample)[0])
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
    """Why the loader cannot rebalance with one row per rank, if ranks wait for each other; else None."""
    from .....training.steps import GROUP, IDLE

    one = next((each for each in packing.balance if each.rows_each == 1), None)
    if one is None or one.balanced < one.plain or one.plain < _SEEN:
        return None
    rows = max(packing.splits, key=lambda each: (each.split == "train", each.rows)).rows
    return (
        f"With one row per rank, the loader cannot rebalance. It puts rows of similar cost into one step only if that "
        f"gains enough: with at least {4 * GROUP:,} rows (here {rows:,}), and if the slowest of {GROUP} ranks would "
        f"take more than {IDLE:.2f} × the mean."
    )


def _sample() -> int:
    from .....training.steps import SAMPLE

    return SAMPLE


def _order(rows: int, shuffled: bool) -> NDArray[np.int64]:
    """The first rows of the loader's first epoch with seed 0, before rows of similar cost are grouped."""
    from .....training.order import EpochOrder, Order

    if not rows:
        return np.zeros(0, np.int64)
    return EpochOrder(rows, 0, Order.FULL, shuffled)(0, min(rows, LOOKED_AT))


def _grouped(costs: NDArray[np.float64], order: NDArray[np.int64], balance: object) -> NDArray[np.float64]:
    """The costs in the loader's order, with rows of similar cost grouped."""
    from .....training.order import epoch_key
    from .....training.steps import Balance, grouped

    if not isinstance(balance, Balance):
        return costs
    of_row = dict(zip(order.tolist(), costs.tolist(), strict=True))
    out = []
    for block, begin in enumerate(range(0, len(order), balance.block)):
        here = slice(begin, begin + balance.block)
        rows = grouped(order[here], costs[here], balance, epoch_key(0, block, "groups"), begin)
        out.append(np.array([of_row[row] for row in rows.tolist()]))
    return np.concatenate(out) if out else costs
