"""Hashes of values: stable, equal for equal values, and refused for values without stable bytes."""

import math
from typing import Any

import pytest
from packtrain.schemas.errors import ConfigError
from packtrain.schemas.fingerprint import fingerprint, hash_bytes


def test_the_hash_is_what_it_was() -> None:
    # Golden: changing these invalidates every cache and every manifest.
    assert fingerprint({"b": [1, 2.5, None, True], "a": "ü\n"}) == (
        "23636b3f57c6706a31c47fe9c7f7c76a1659e4091f10fac2e0580d19f63ca3e9"
    )
    assert hash_bytes(b"") == "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"


def test_lists_and_tuples_are_alike_but_types_are_not() -> None:
    assert fingerprint((1, (2, 3))) == fingerprint([1, [2, 3]])
    different = [1, 1.0, "1", True, None, [1], {"1": 1}, 0, "", [], {}]
    assert len({fingerprint(value) for value in different}) == len(different)


@pytest.mark.parametrize("value", [math.nan, {"a": [math.inf]}, {"a": {1, 2}}, [b"x"], object()])
def test_a_value_without_stable_bytes_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError):
        fingerprint(value)
