"""Hashes of values: stable, equal for equal values, and refused for values without stable bytes."""

import datetime as dt
import enum
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.schemas.errors import PacktrainError
from packtrain.schemas.fingerprint import FingerprintError, canonical_json, fingerprint, hash_bytes

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(values)
def test_the_text_is_json_that_reads_back_equal(value: Any) -> None:
    text = canonical_json(value)
    assert json.loads(text) == value
    assert canonical_json(json.loads(text)) == text


@given(st.dictionaries(st.text(), scalars, min_size=2))
def test_the_order_of_keys_is_of_no_matter(value: dict[str, Any]) -> None:
    assert fingerprint(dict(reversed(value.items()))) == fingerprint(value)


def test_the_bytes_are_what_they_were() -> None:
    # Golden: changing these invalidates every cache and every manifest.
    assert canonical_json({"b": [1, 2.5, None, True], "a": "ü\n"}) == '{"a":"ü\\n","b":[1,2.5,null,true]}'
    assert fingerprint({"b": [1, 2.5, None, True], "a": "ü\n"}) == (
        "23636b3f57c6706a31c47fe9c7f7c76a1659e4091f10fac2e0580d19f63ca3e9"
    )
    assert hash_bytes(b"") == "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
    assert hash_bytes(memoryview(b"packtrain")) == hash_bytes(b"packtrain")


def test_lists_and_tuples_are_alike_but_types_are_not() -> None:
    assert fingerprint((1, (2, 3))) == fingerprint([1, [2, 3]])
    different = [1, 1.0, "1", True, None, [1], {"1": 1}, 0, "", [], {}]
    assert len({fingerprint(value) for value in different}) == len(different)


class Color(enum.Enum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "where", "what"),
    [
        (math.nan, "the value", "nan"),
        ({"a": [1, math.inf]}, r"a\[1\]", "inf"),
        ({"a": {"b": {1, 2}}}, r"a\.b", "set"),
        ([b"x"], r"\[0\]", "bytes"),
        (Path("x"), "the value", "Path"),
        ({"when": dt.date(2024, 7, 26)}, "when", "date"),
        ({1: "x"}, "the value", "key 1"),
        ({"a": {None: "x"}}, "a", "key None"),
        ([Color.RED], r"\[0\]", "Color"),
        (object(), "the value", "object"),
    ],
)
def test_a_value_without_stable_bytes_is_refused_by_name(value: Any, where: str, what: str) -> None:
    with pytest.raises(FingerprintError, match=f"^{where} .*{what}") as caught:
        fingerprint(value)
    assert isinstance(caught.value, PacktrainError)
    assert isinstance(caught.value, TypeError)
    assert any(word in str(caught.value) for word in ("use", "must", "turn it into")), "it does not say what to do"


def test_another_process_says_the_same() -> None:
    value = {"z": [0.1, 1e300, -0.0], "a": {"ü": "🙂", "n": None}}
    code = f"from packtrain.schemas.fingerprint import fingerprint; print(fingerprint({value!r}))"
    found = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout.strip()
        for seed in ("0", "1")
    }
    assert found == {fingerprint(value)}
