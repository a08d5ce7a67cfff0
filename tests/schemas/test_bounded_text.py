"""YAML and JSON of others are read within bounds."""

import json
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.schemas.config import yamltext
from packtrain.schemas.config.yamltext import BoundError, parse_yaml
from packtrain.schemas.jsontext import decode_note, indented_json, parse_json

NINE_LEVELS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 10)
)


def test_aliases_are_counted_and_not_written_out() -> None:
    began = time.process_time()
    with pytest.raises(BoundError):
        parse_yaml(NINE_LEVELS)
    assert time.process_time() - began < 5  # ten levels written out are more values than memory holds
    assert parse_yaml("a: &a [1, 2]\nb: [*a, *a]\n")[0] == {"a": [1, 2], "b": [[1, 2], [1, 2]]}


def test_plain_keys_are_not_counted_as_aliases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yamltext, "MAX_REPEATED", 100)
    text = "".join(f"k{number}: {number}\n" for number in range(1000))
    assert len(parse_yaml(text)[0]) == 1000


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
    with pytest.raises(ValueError, match="a number of 5,000 digits"):
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
