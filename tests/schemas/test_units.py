"""Numbers as people read and write them."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.schemas import units

SHOWN: dict[str, list[tuple[float, str]]] = {
    "count": [
        (0, "0"), (1, "1"), (0.34, "0.3"), (0.02, "0.02"), (12.5, "12.5"), (999, "999"), (999.6, "1.0 k"),
        (1000, "1.0 k"), (1_234_567, "1.2 M"), (99_940, "99.9 k"), (99_960, "100 k"), (123e6, "123 M"),
        (999_500, "1.0 M"), (3.2e21, "3.2 Z"), (-5, "−5"), (math.nan, "–"), (math.inf, "∞"),
    ],
    "size": [
        (0, "0 B"), (812, "812 B"), (1000, "1.0 KiB"), (1024, "1.0 KiB"), (1536, "1.5 KiB"),
        (2**20 - 1, "1.0 MiB"), (256 * 2**20, "256 MiB"), (8 * 2**30, "8.0 GiB"), (5e15, "4.4 PiB"), (math.nan, "–"),
    ],
    "duration": [
        (0, "0.0 s"), (0.00123, "1.2 ms"), (0.0123, "12.3 ms"), (0.0996, "0.1 s"),
        (0.44, "0.4 s"), (59.94, "59.9 s"), (59.96, "1 min"), (93.2, "1 min 33 s"), (3599.4, "59 min 59 s"),
        (3599.6, "1 h"), (7500, "2 h 5 min"), (86_399, "1 d"), (1e6, "11 d 14 h"),
        (math.inf, "for ever"), (math.nan, "–"),
    ],
}  # fmt: skip
"""Values as a function of `units` shows them."""


@pytest.mark.parametrize("how", SHOWN)
def test_values_as_they_are_shown(how: str) -> None:
    assert [getattr(units, how)(value) for value, _ in SHOWN[how]] == [text for _, text in SHOWN[how]]


SHARES = [
    (0, 1, "0.0 %"), (0.1234, 1, "12.3 %"), (1, 1, "100.0 %"), (1.5, 0, "150 %"), (1e-5, 1, "< 0.1 %"),
    (0.99999, 1, "> 99.9 %"), (0.99999, 3, "99.999 %"), (1e-9, 2, "< 0.01 %"), (-0.0001, 1, "0.0 %"),
    (0.004, 0, "< 1 %"), (math.nan, 1, "–"),
]  # fmt: skip


def test_shares() -> None:
    assert [units.share(value, digits, fixed=True) for value, digits, _ in SHARES] == [text for *_, text in SHARES]


@given(st.floats(0.1, 1e9))
def test_a_duration_is_read_back_to_within_its_rounding(seconds: float) -> None:
    text = units.duration(seconds)
    # The last unit that is shown may be one that is left out because it is 0.
    rounding = 0.05 if seconds < 59.95 else 0.5 if seconds < 3599.5 else 30 if seconds < 86_370 else 1800
    assert abs(units.parse_duration(text.replace(",", "")) - seconds) <= rounding * 1.001
    assert not re.search(r"\b60(\.0)? (s|min)\b|\b24 h\b", text)


@given(st.floats(0, 1), st.integers(0, 4), st.booleans())
def test_a_share_never_claims_all_or_nothing(value: float, digits: int, fixed: bool) -> None:
    text = units.share(value, digits, fixed=fixed)
    assert (float(text.removesuffix(" %")) == 0 if text[0] not in "<>" else False) == (value == 0)
    assert (float(text.removesuffix(" %")) == 100 if text[0] not in "<>" else False) == (value == 1)


WRITTEN = {
    "90": 90, "90s": 90, "1h30m": 5400, "1 min 33 s": 93, "2d": 172_800, "500ms": 0.5, "1.5 h": 5400, " 15 MIN ": 900,
    ".5h": 1800, "1e3": 1000, "inf": math.inf, ".inf": math.inf, "0": 0,
}  # fmt: skip


def test_durations_as_people_write_them() -> None:
    assert {text: units.parse_duration(text) for text in WRITTEN} == WRITTEN


@given(st.text(max_size=12))
def test_any_text_is_a_size_and_a_duration_or_refused(text: str) -> None:
    for parse, what in ((units.parse_size, "size"), (units.parse_duration, "duration")):
        try:
            assert parse(text) >= 0
        except ValueError as error:
            assert f"is not a {what}" in str(error)  # noqa: PT017 - which of both happens is the test
