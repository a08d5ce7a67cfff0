"""Numbers as people read and write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.schemas import units

SHOWN: dict[str, list[tuple[float, str]]] = {
    "large": [
        (0, "0"), (1, "1"), (0.34, "0.3"), (2.0, "2"), (12.5, "12"), (999.6, "1,000"), (9_999, "9,999"),
        (10_000, "10.0 k"), (1_234_567, "1.2 M"), (99_940, "99.9 k"), (99_960, "100 k"), (123e6, "123 M"),
        (999_500, "1.0 M"), (3.2e18, "3.2 E"),
    ],
    "size": [
        (0, "0 B"), (812, "812 B"), (1000, "1.0 KiB"), (1024, "1.0 KiB"), (1536, "1.5 KiB"),
        (2**20 - 1, "1.0 MiB"), (256 * 2**20, "256 MiB"), (8 * 2**30, "8.0 GiB"), (5e15, "4.4 PiB"),
    ],
    "duration": [
        (0, "0.0 s"), (0.00123, "1.2 ms"), (0.0123, "12.3 ms"), (0.0996, "0.1 s"),
        (0.44, "0.4 s"), (59.94, "59.9 s"), (59.96, "1 min"), (93.2, "1 min 33 s"), (3599.4, "59 min 59 s"),
        (3599.6, "1 h"), (7500, "2 h 5 min"), (86_399, "1 d"), (1e6, "11 d 14 h"),
    ],
}  # fmt: skip
"""Values as a function of `units` shows them."""


@pytest.mark.parametrize("how", SHOWN)
def test_values_as_they_are_shown(how: str) -> None:
    assert [getattr(units, how)(value) for value, _ in SHOWN[how]] == [text for _, text in SHOWN[how]]


SHARES = [
    (0, 1, "0.0 %"), (0.1234, 1, "12.3 %"), (1, 1, "100.0 %"), (1.5, 0, "150 %"), (1e-5, 1, "< 0.1 %"),
    (0.99999, 1, "> 99.9 %"), (0.99999, 3, "99.999 %"), (1e-9, 2, "< 0.01 %"), (-0.0001, 1, "0.0 %"),
    (0.004, 0, "< 1 %"),
]  # fmt: skip


def test_shares() -> None:
    assert [units.share(value, digits, fixed=True) for value, digits, _ in SHARES] == [text for *_, text in SHARES]


@given(st.floats(0, 1), st.integers(0, 4), st.booleans())
def test_a_share_never_claims_all_or_nothing(value: float, digits: int, fixed: bool) -> None:
    text = units.share(value, digits, fixed=fixed)
    assert (float(text.removesuffix(" %")) == 0 if text[0] not in "<>" else False) == (value == 0)
    assert (float(text.removesuffix(" %")) == 100 if text[0] not in "<>" else False) == (value == 1)
