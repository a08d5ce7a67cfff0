"""Elements of JSON arrays: those that a decoder of the whole array finds, wherever chunks of the stream end."""

import io
import json
import random
from typing import Any

import msgspec
import pytest
from packtrain.pipeline.inputs import json_array
from packtrain.pipeline.inputs.json_array import array_elements


def value(chance: random.Random, depth: int = 0) -> Any:
    """Any JSON value, with all that can mislead in its strings."""
    kind = chance.randrange(8)
    if kind < 3:
        return "".join(chance.choice('ab"\\\\[]{},\n é🙂') for _ in range(chance.randrange(30)))
    if kind < 6 and depth < 4:
        inner = [value(chance, depth + 1) for _ in range(chance.randrange(4))]
        return inner if kind == 3 else {str(key): item for key, item in enumerate(inner)}
    return (None, True, 1.5, chance.randrange(10**6))[chance.randrange(4)]


def elements(data: bytes, longest: int = 1 << 20) -> list[bytes]:
    return list(array_elements(io.BufferedReader(io.BytesIO(data)), longest))


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 1 << 20])
def test_as_a_decoder_of_the_whole(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_array, "_CHUNK", chunk)
    chance = random.Random(chunk)
    damaged = 0
    for _ in range(150):
        rows = [value(chance) for _ in range(chance.randrange(6))]
        text = json.dumps(rows, indent=chance.choice([None, 1]), ensure_ascii=chance.random() < 0.5).encode()
        whole = [bytes(row) for row in msgspec.json.decode(text, type=list[msgspec.Raw])]
        assert elements(text) == whole
        broken = bytearray(text)
        broken[chance.randrange(len(broken))] = chance.choice(b'[]{}",\\ 1')
        try:
            expected = json.loads(broken.decode("utf-8", "surrogateescape"))
        except ValueError:
            damaged += 1
            with pytest.raises(ValueError, match="at byte"):
                elements(bytes(broken))
        else:
            assert [json.loads(row.decode("utf-8", "surrogateescape")) for row in elements(bytes(broken))] == expected
    assert damaged > 20


@pytest.mark.parametrize(
    "text", [b"[", b"[1", b"[1,", b"[1,]", b"[,1]", b"[1 2]", b"[1]]", b"[1] x", b"[1}", b'["a]', b"{}", b""]
)
def test_what_is_no_array(text: bytes) -> None:
    with pytest.raises(ValueError, match="at byte"):
        elements(text)


def test_a_long_element_is_found() -> None:
    long = b'{"text": "' + b'x\\\\\\"[' * 300_000 + b'"}'
    assert elements(b'[{"a": 1}, ' + long + b" , [2]]", 100) == [b'{"a": 1}', long, b"[2]"]


def test_an_endless_element_is_not_read_to_its_end() -> None:
    stream = io.BytesIO(b'[1, "' + b"x" * (64 << 20))
    reader: io.BufferedReader[Any] = io.BufferedReader(stream)
    with pytest.raises(ValueError, match="far longer than max_row_bytes"):
        list(array_elements(reader, 100))
    assert stream.tell() < 16 << 20


def test_bytes_that_are_no_utf_8_stay() -> None:
    assert elements(b'["\xff\xe9", "\xc3\xa9"]') == [b'"\xff\xe9"', b'"\xc3\xa9"']


@pytest.mark.parametrize("text", [b"[NaN]", b"[1, -Infinity]", b"[" * 100_000])
def test_what_python_would_take_or_not_survive(text: bytes) -> None:
    with pytest.raises(ValueError, match="at byte"):
        elements(text)


def test_numbers_of_any_length() -> None:
    assert elements(b"[" + b"9" * 10_000 + b"]") == [b"9" * 10_000]
