"""How often each source goes into the mix."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.stages.select.sampling import passes_of

F = Fraction


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
