"""Comparators: what each accepts, and the errors of the checker that is published with APPS."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.stages.judge.comparators import Rule, compare_text, compare_value, equal_values

from tests.support.examples import examples

TEXTS: list[tuple[str, str, Rule | None]] = [
    ("1\n2\n", "1\n2", Rule.exact),
    ("1\n2", "1 \r\n2\t\n\n\n", Rule.exact),
    ("", "", Rule.exact),
    ("", " \n", Rule.exact),
    ("", "0", None),
    ("1 2", "1\n2", Rule.tokens),
    ("1 2", "2 1", None),  # sets of words
    ("1 1 2", "1 2 2", None),
    ("1 1 2", "1 2", None),
    ("YES", "Yes", None),
    ("1000000", "1000001", None),  # integers with a tolerance
    ("1000000000000", "1000000000000.0000001", None),
    ("3", "3.0", None),
    ("0.5", "0.50", Rule.numbers),
    ("2.0", "2", Rule.numbers),
    ("0.3333333333", "0.33333331", Rule.numbers),
    ("0.123456", "0.1234", None),  # three places
    ("1e9", "1.0e9", None),  # no decimal point in what is expected
    ("1.0", "nan", None),
    ("1.0", "inf", None),
    ("1.0", "1_0", None),
    ("1.0", "١", None),
    ("1.5e3", "1500", Rule.numbers),
    ("a 1.0\nb", "a  1.0000001 b", Rule.numbers),
    ("1.0 2", "1.00 3", None),
    ("1.0.0", "1.0.00", None),
]


@pytest.mark.parametrize(("expected", "output", "rule"), TEXTS)
def test_texts(expected: str, output: str, rule: Rule | None) -> None:
    assert compare_text(expected, output) is rule


def test_the_tolerance_is_relative_above_one_and_absolute_below() -> None:
    def close(expected: str, output: str) -> bool:
        return compare_text(expected, output) is not None

    assert close("1000000.0", "1000000.9")
    assert not close("1000000.0", "1000001.1")
    assert close("0.0", "0.0000009")
    assert not close("0.0", "0.0000011")
    assert not close(f"1.{'0' * 500}", f"1.{'0' * 501}")  # longer than any number that is meant


WORD = st.text(st.characters(categories=("L", "N", "P")), min_size=1, max_size=6)
NUMBER = st.integers().map(str) | st.floats(allow_nan=False, allow_infinity=False).map(repr)
words = st.lists(NUMBER | WORD, max_size=8)


@given(words, st.randoms(use_true_random=False))
@examples(200)
def test_the_rules_exact_and_tokens_accept_nothing_but_the_same_words_in_the_same_order(
    one: list[str], chance: object
) -> None:
    other = list(one)
    chance.shuffle(other)  # type: ignore[attr-defined]
    found = compare_text(" ".join(one), "\n".join(other))
    assert (found in (Rule.exact, Rule.tokens)) == (" ".join(one).split() == " ".join(other).split())


VALUES: list[tuple[object, str, bool, Rule | None]] = [
    (9, "9", False, Rule.value),
    (9, "9.0", False, Rule.value),
    (9, "10", False, None),
    (True, "true", False, Rule.value),
    (True, "1", False, None),
    (1, "true", False, None),
    ("a", '"a"', False, Rule.value),
    ("1", "1", False, None),
    (None, "null", False, Rule.value),
    ([1, [2]], "[1, [2]]", False, Rule.value),
    ([1, 2], "[2, 1]", False, None),
    ([1], "[1, 1]", False, None),
    ({"a": [1]}, '{"a": [1]}', False, Rule.value),
    ({"a": 1}, '{"a": 1, "b": 2}', False, None),
    (0.5, "0.5000001", False, Rule.close_value),
    (5, "5.0000001", False, None),
    (10**400, "1e300", False, None),
    (1.5, str(10**400), False, None),
    ([False], "false", True, Rule.wrapped),
    ([False], "[false]", True, Rule.value),
    ([False], "false", False, None),  # the first element of a list, unless all tests are wrapped
    ([[1, 2]], "[1, 2]", True, Rule.wrapped),
    ([0], "false", True, None),
    ([1, 2], "1", False, None),
    (1, "NaN", False, None),
    (1, "", False, None),
    (1, "not JSON", False, None),
]


@pytest.mark.parametrize(("expected", "value", "wrapped", "rule"), VALUES)
def test_values(expected: object, value: str, wrapped: bool, rule: Rule | None) -> None:
    assert compare_value(expected, value.encode(), wrapped=wrapped) == rule


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


@given(json_values, json_values)
@examples(300)
def test_equality_is_that_of_python_but_for_booleans(one: object, other: object) -> None:
    assert equal_values(one, json.loads(json.dumps(one)), close=False)

    def marked(value: object) -> object:
        if isinstance(value, bool):
            return f"a boolean: {value}"
        if isinstance(value, list):
            return [marked(inner) for inner in value]
        return {key: marked(inner) for key, inner in value.items()} if isinstance(value, dict) else value

    assert equal_values(one, other, close=False) == (marked(one) == marked(other))


def test_hostile_json_is_wrong_and_nothing_worse() -> None:
    for value in (b"[" * 200_000, b"9" * 100_000, b"\xff", b'"\\ud800"', b"1e999"):
        assert compare_value([1], value) is None
    deep = json.loads("[" * 500 + "]" * 500)
    assert equal_values(deep, json.loads("[" * 500 + "]" * 500), close=True)
