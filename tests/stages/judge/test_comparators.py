"""What is accepted as right, and the errors of the checker that is published with APPS."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.stages.judge.comparators import equal_values, same_text, same_value

from tests.support.examples import examples

TEXTS: list[tuple[str, str, bool]] = [
    ("1\n2\n", "1\n2", True),
    ("1\n2", "1 \r\n2\t\n\n\n", True),
    ("", "", True),
    ("", " \n", True),
    ("", "0", False),
    ("1 2", "1\n2", True),
    ("1 2", "2 1", False),  # sets of words
    ("1 1 2", "1 2 2", False),
    ("1 1 2", "1 2", False),
    ("YES", "Yes", False),
    ("1000000", "1000001", False),  # integers with a tolerance
    ("1000000000000", "1000000000000.0000001", False),
    ("3", "3.0", False),
    ("0.5", "0.50", True),
    ("2.0", "2", True),
    ("0.3333333333", "0.33333331", True),
    ("0.123456", "0.1234", False),  # three places
    ("1e9", "1.0e9", False),  # no decimal point in what is expected
    ("1.0", "nan", False),
    ("1.0", "inf", False),
    ("1.0", "1_0", False),
    ("1.0", "١", False),
    ("1.5e3", "1500", True),
    ("a 1.0\nb", "a  1.0000001 b", True),
    ("1.0 2", "1.00 3", False),
    ("1.0.0", "1.0.00", False),
]


@pytest.mark.parametrize(("expected", "output", "right"), TEXTS)
def test_texts(expected: str, output: str, right: bool) -> None:
    assert same_text(expected, output) is right


def test_the_tolerance_is_relative_above_one_and_absolute_below() -> None:
    assert same_text("1000000.0", "1000000.9")
    assert not same_text("1000000.0", "1000001.1")
    assert same_text("0.0", "0.0000009")
    assert not same_text("0.0", "0.0000011")
    assert not same_text(f"1.{'0' * 500}", f"1.{'0' * 501}")  # longer than any number that is meant


WORD = st.text(st.characters(categories=("L", "P")), min_size=1, max_size=6)
words = st.lists(st.integers().map(str) | WORD, max_size=8)


@given(words, st.randoms(use_true_random=False))
@examples(200)
def test_nothing_but_the_same_words_in_the_same_order_is_right(one: list[str], chance: object) -> None:
    other = list(one)
    chance.shuffle(other)  # type: ignore[attr-defined]
    assert same_text(" ".join(one), "\n".join(other)) == (" ".join(one).split() == " ".join(other).split())


VALUES: list[tuple[object, str, bool, bool]] = [
    (9, "9", False, True),
    (9, "9.0", False, True),
    (9, "10", False, False),
    (True, "true", False, True),
    (True, "1", False, False),
    (1, "true", False, False),
    ("a", '"a"', False, True),
    ("1", "1", False, False),
    (None, "null", False, True),
    ([1, [2]], "[1, [2]]", False, True),
    ([1, 2], "[2, 1]", False, False),
    ([1], "[1, 1]", False, False),
    ({"a": [1]}, '{"a": [1]}', False, True),
    ({"a": 1}, '{"a": 1, "b": 2}', False, False),
    (0.5, "0.5000001", False, True),
    (5, "5.0000001", False, False),
    (10**400, "1e300", False, False),
    (1.5, str(10**400), False, False),
    ([False], "false", True, True),
    ([False], "[false]", True, True),
    ([False], "false", False, False),  # the first element of a list, unless all tests are wrapped
    ([[1, 2]], "[1, 2]", True, True),
    ([0], "false", True, False),
    ([1, 2], "1", False, False),
    (1, "NaN", False, False),
    (1, "", False, False),
    (1, "not JSON", False, False),
]


@pytest.mark.parametrize(("expected", "value", "wrapped", "right"), VALUES)
def test_values(expected: object, value: str, wrapped: bool, right: bool) -> None:
    assert same_value(expected, value.encode(), is_wrapped=wrapped) is right


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


@given(json_values, json_values)
@examples(300)
def test_equality_is_that_of_python_but_for_booleans(one: object, other: object) -> None:
    assert equal_values(one, json.loads(json.dumps(one)))

    def marked(value: object) -> object:
        if isinstance(value, bool):
            return f"a boolean: {value}"
        if isinstance(value, list):
            return [marked(inner) for inner in value]
        return {key: marked(inner) for key, inner in value.items()} if isinstance(value, dict) else value

    assert equal_values(one, other) == (marked(one) == marked(other))


def test_hostile_json_is_wrong_and_nothing_worse() -> None:
    for value in (b"[" * 200_000, b"9" * 100_000, b"\xff", b'"\\ud800"', b"1e999"):
        assert not same_value([1], value)
    deep = json.loads("[" * 500 + "]" * 500)
    assert equal_values(deep, json.loads("[" * 500 + "]" * 500))
