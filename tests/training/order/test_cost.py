"""Costs in whole numbers, and how a step's rows are assigned to the ranks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.training.order.cost import assign_to_ranks, whole_costs


def test_whole_costs_keep_proportions() -> None:
    assert whole_costs(np.array([0.5, 1.0, 0.0])).tolist() == [2**39, 2**40, 0]
    assert whole_costs(np.zeros(2)).tolist() == [0, 0]
    assert whole_costs(np.zeros(0)).tolist() == []


def test_deals_that_can_be_checked_by_eye() -> None:
    assert assign_to_ranks(np.array([4.0, 3, 2, 1]), 2) == [[0, 3], [1, 2]]
    assert assign_to_ranks(np.array([1.0, 1, 1, 1, 1, 1]), 3) == [[0, 3], [1, 4], [2, 5]]
    # The dearest row cannot be helped: it gets the cheapest one.
    assert assign_to_ranks(np.array([1.0, 9, 2, 2]), 2) == [[0, 1], [2, 3]]
    # In layers, 8 7 | 6 5 | 4 1, come out 8 + 5 + 1 = 14 and 7 + 6 + 4 = 17; swapping 5 and 6 makes them 15 and 16.
    costs = np.array([8.0, 7, 6, 5, 4, 1])
    assert sorted(costs[hand].sum() for hand in assign_to_ranks(costs, 2)) == [15, 16]
    # One row each, or one rank: nothing to choose.
    assert assign_to_ranks(np.array([5.0, 1, 3]), 3) == [[0], [1], [2]]
    assert assign_to_ranks(np.array([5.0, 1, 3]), 1) == [[0, 1, 2]]


_Costs = st.floats(0, 1e9, allow_subnormal=False)


@given(st.data(), st.integers(1, 9), st.integers(1, 6))
def test_every_rank_gets_its_share_and_sums_differ_by_less_than_rows_do(
    data: st.DataObject, ranks: int, share: int
) -> None:
    costs = np.array(data.draw(st.lists(_Costs, min_size=ranks * share, max_size=ranks * share)))
    hands = assign_to_ranks(costs, ranks)
    assert [len(hand) for hand in hands] == [share] * ranks
    assert sorted(index for hand in hands for index in hand) == list(range(ranks * share))
    assert assign_to_ranks(costs.copy(), ranks) == hands
    assert all(hand == sorted(hand) for hand in hands)
    assert [hand[0] for hand in hands] == sorted(hand[0] for hand in hands)
    sums = [costs[hand].sum() for hand in hands]
    # A layer is dealt against the sums so far, so their range never exceeds that of one row; swaps only narrow it.
    assert max(sums) - min(sums) <= costs.max() - costs.min() + 1e-6 * costs.max()


def test_eight_long_tailed_rows_a_rank_come_out_alike() -> None:
    random = np.random.default_rng(3)
    for ranks in (8, 64, 512):
        costs = 1 + random.pareto(2.5, ranks * 8).clip(0, 3)
        sums = np.array([costs[hand].sum() for hand in assign_to_ranks(costs, ranks)])
        consecutive = costs.reshape(ranks, 8).sum(axis=1)
        assert sums.max() <= 1.01 * sums.mean()
        assert consecutive.max() > 1.2 * consecutive.mean(), "or there was nothing to do"


def test_layers_alone_are_enough_for_ranks_with_thousands_of_rows() -> None:
    """Swaps are not even weighed: of each layer, the rank that is behind gets the more expensive row."""
    costs = np.arange(1.0, 4097)
    sums = [costs[hand].sum() for hand in assign_to_ranks(costs, 2)]
    assert abs(sums[0] - sums[1]) <= 1


def test_swaps_do_what_one_pass_cannot() -> None:
    """Of two ranks with 3 rows each there are 10 assignments: the best one is found."""
    random = np.random.default_rng(4)
    for _ in range(200):
        costs = random.integers(1, 100, 6).astype(np.float64)
        found = max(costs[hand].sum() for hand in assign_to_ranks(costs, 2))
        halves = [costs[[0, i, j]].sum() for i in range(1, 6) for j in range(i + 1, 6)]
        best = min(max(half, costs.sum() - half) for half in halves)
        # A single swap is the only move, so now and then a better deal is two swaps away.
        assert found <= best * 1.1


def test_the_dearest_row_goes_to_any_rank() -> None:
    random = np.random.default_rng(5)
    ranks = []
    for _ in range(400):
        costs = random.random(16)
        ranks.append(next(rank for rank, hand in enumerate(assign_to_ranks(costs, 4)) if int(costs.argmax()) in hand))
    # Hands stand in the order of their first rows, so the last one is a little less likely to hold any given row.
    assert min(np.bincount(ranks, minlength=4)) > 60


@pytest.mark.parametrize(("rows", "ranks"), [(5, 2), (3, 4), (4, 0)])
def test_what_cannot_be_divided_is_refused(rows: int, ranks: int) -> None:
    with pytest.raises(ValueError, match=f"{rows} rows cannot be divided equally among {ranks} ranks"):
        assign_to_ranks(np.ones(rows), ranks)
