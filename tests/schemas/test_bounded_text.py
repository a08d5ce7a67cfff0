"""JSON of others is read within bounds, and JSON for people is what json writes."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.schemas.jsontext import decode_note, indented_json, parse_json


@pytest.mark.parametrize("text", [b"[" * 100_000, b"[" * 500 + b"]" * 500, b'{"a":' * 500 + b"1" + b"}" * 500])
def test_json_nested_too_deeply(text: bytes) -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json(text)


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":' + b"[" * 100_000, b"\xff", b"", b"9" * 5000])
@pytest.mark.parametrize("kind", [dict[str, Any], Any])
def test_a_note_that_cannot_be_read(text: bytes, kind: Any) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode_note(text, kind)


def test_numbers_of_json() -> None:
    with pytest.raises(ValueError, match="4300 digits"):
        parse_json(b"9" * 5000)
    assert parse_json(b'{"a": [1, -2.5, "x"]}') == {"a": [1, -2.5, "x"]}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON, st.integers(1, 3))
def test_indented_json_is_what_json_writes(value: object, indent: int) -> None:
    """The manifest's bytes, among others."""
    expected = json.dumps(value, indent=indent, sort_keys=True, ensure_ascii=False)
    assert indented_json(value, indent) == expected.encode()
