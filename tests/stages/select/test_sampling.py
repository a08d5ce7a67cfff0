"""How often each example is packed: repeats exactly, weights within one document, and by the seed alone."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from packtrain.stages.select.sampling import Draw, draw_keys, passes_of

F = Fraction


def copies_of(tokens: NDArray[np.int64], passes: Fraction, seed: int, source: int) -> NDArray[np.int32]:
    """How often each document is packed, for `passes` through the tokens of its source."""
    places = np.arange(len(tokens), dtype=np.int64)
    keys = draw_keys(places, seed, source)
    draw = Draw()
    draw.count(keys, tokens)
    if draw.set_target(passes):
        draw.read_again(keys, places, tokens)
    return draw.quota().copies(keys, places, tokens)


@pytest.mark.parametrize(
    ("tokens", "weights", "repeats", "expected"),
    [
        # Without weights: as often as it says, once where it says nothing.
        ([100, 50], [None, None], [None, None], [F(1), F(1)]),
        ([100, 50], [None, None], [3, None], [F(3), F(1)]),
        # The one with the most tokens for its weight is used once, the other repeated to match it.
        ([100, 50], [1, 1], [None, None], [F(1), F(2)]),
        ([100, 50], [1, 2], [None, None], [F(1), F(4)]),
        ([100, 50], [4, 1], [None, None], [F(2), F(1)]),
        # A repeat bounds the mix: the small one at most once, so the large one in part.
        ([100, 50], [1, 1], [None, 1], [F(1, 2), F(1)]),
        ([100, 50], [1, 1], [None, 3], [F(3, 2), F(3)]),
        ([100, 50], [1, 1], [1, None], [F(1), F(2)]),
        # Of two bounds the tighter one.
        ([100, 50], [1, 1], [1, 1], [F(1, 2), F(1)]),
        ([100, 10, 1], [1, 1, 1], [1, 2, 4], [F(1, 25), F(2, 5), F(4)]),
        # A source without tokens stays without, and binds nothing.
        ([100, 0], [1, 1], [None, 1], [F(1), F(0)]),
        ([0, 0], [1, 1], [None, None], [F(0), F(0)]),
    ],
)
def test_passes_by_eye(
    tokens: list[int], weights: list[float | None], repeats: list[int | None], expected: list[Fraction]
) -> None:
    assert passes_of(tokens, weights, repeats) == expected


sources = st.lists(
    st.tuples(st.integers(1, 10**12), st.floats(1e-3, 1e3), st.none() | st.integers(1, 9)), min_size=1, max_size=6
)


@given(sources)
def test_weights_are_shares_of_tokens(drawn: list[tuple[int, float, int | None]]) -> None:
    tokens, weights, repeats = [list(column) for column in zip(*drawn, strict=True)]
    passes = passes_of(tokens, weights, repeats)
    scales = {often * available / F(weight) for often, available, weight in zip(passes, tokens, weights, strict=True)}
    assert len(scales) == 1
    given_repeats = [(often, repeat) for often, repeat in zip(passes, repeats, strict=True) if repeat is not None]
    assert all(often <= repeat for often, repeat in given_repeats)
    if given_repeats:
        assert any(often == repeat for often, repeat in given_repeats)
    else:
        assert min(passes) == 1
    # Only relations matter: all weights times a power of two, which a float holds exactly.
    assert passes_of(tokens, [weight * 4 for weight in weights], repeats) == passes


@given(
    tokens=st.lists(st.integers(0, 50), max_size=60),
    passes=st.fractions(0, 5),
    seed=st.integers(0, 2**63 - 1),
    source=st.integers(0, 5),
)
def test_copies_reach_the_share_within_one_document(
    tokens: list[int], passes: Fraction, seed: int, source: int
) -> None:
    array = np.array(tokens, dtype=np.int64)
    copies = copies_of(array, passes, seed, source)
    assert np.array_equal(copies, copies_of(array, passes, seed, source))
    there = copies[array > 0]
    assert not copies[array == 0].any()
    assert set(there.tolist()) <= {int(passes), int(passes) + 1}
    if passes.denominator == 1:
        assert set(there.tolist()) <= {int(passes)}
    longest = max(tokens, default=0)
    assert abs(int((array * copies).sum()) - passes * sum(tokens)) <= F(longest, 2)


def test_the_choice_knows_only_seed_and_place() -> None:
    """Other contents of the same lengths are chosen alike; another seed or source is not; a growing share adds."""
    tokens = np.full(1000, 7, dtype=np.int64)
    half = copies_of(tokens, F(1, 2), 42, 0)
    assert half.sum() == 500
    for other in (copies_of(tokens, F(1, 2), 43, 0), copies_of(tokens, F(1, 2), 42, 1)):
        assert other.sum() == 500
        assert 150 < (half * other).sum() < 350
    more = copies_of(tokens, F(3, 4), 42, 0)
    assert more.sum() == 750
    assert (more >= half).all()
    # Neither the first ones, nor neighbours.
    assert 200 < half[:500].sum() < 300
    assert 150 < (half[1:] * half[:-1]).sum() < 350


def test_the_choice_is_pinned() -> None:
    """If this changes, every mixed dataset that was made before is another."""
    assert copies_of(np.arange(1, 13, dtype=np.int64), F(3, 2), 42, 0).tolist() == [2, 1, 2, 1, 2, 1, 1, 2, 1, 2, 2, 1]
