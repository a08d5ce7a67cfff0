"""Outputs of programs, small and large, against what is expected; and that comparing one holds up no other."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from packtrain.pipeline.judge.comparison import MAX_INLINE_BYTES, is_correct
from packtrain.stages.judge.problems import Problem

MANY = [*range(100_000)]
NESTED = b"[" + b"[]," * 5_000_000 + b"[]]"


def problem(expected: Any, *, function: str | None = "f") -> Problem:
    return Problem(0, "id", "easy", function, (b"",), (expected,), ())


@pytest.mark.parametrize(
    ("expected", "output", "right"),
    [
        (MANY, json.dumps(MANY).encode(), True),
        (MANY, json.dumps([float(number) for number in MANY]).encode(), True),
        (MANY, json.dumps([*MANY[:-1], 7]).encode(), False),
        ([MANY], json.dumps(MANY).encode(), True),
        ([0.5], b"[" + b" " * (1 << 20) + b"0.5000000001]", True),
        ([1], NESTED, False),
        ([1], b"[" * (1 << 20), False),
        ([1], b'{"a":' * 200_000, False),
        (10**5, b"9" * (1 << 20), False),
        ("é" * 100_000, json.dumps("é" * 100_000).encode(), True),
    ],
    ids=lambda value: str(value)[:9],
)
def test_what_a_call_returned(expected: Any, output: bytes, right: bool) -> None:
    assert len(output) > MAX_INLINE_BYTES
    assert is_correct(problem(expected), 0, output) is right


@pytest.mark.parametrize(
    ("expected", "output", "right"),
    [
        ("\n".join(map(str, MANY)), " ".join(map(str, MANY)).encode(), True),
        (MANY, "\n".join(map(str, MANY)).encode(), True),
        ("1 2", b"1" + b" " * (1 << 20) + b"2", True),
        ("1 2", b"a " * (8 << 20), False),
        ("1 2", b"\xff" * (1 << 20), False),
    ],
    ids=lambda value: str(value)[:9],
)
def test_what_a_program_printed(expected: Any, output: bytes, right: bool) -> None:
    assert len(output) > MAX_INLINE_BYTES
    assert is_correct(problem(expected, function=None), 0, output) is right


@contextmanager
def clock() -> Iterator[list[float]]:
    """The longest time, in seconds, in which another thread of this process could not run; filled in at the end."""
    longest, done = [0.0], threading.Event()

    def tick() -> None:
        before = time.monotonic()
        while not done.wait(0.01):
            now = time.monotonic()
            longest[0], before = max(longest[0], now - before), now

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        yield longest
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("function", ["f", None])
def test_a_large_output_holds_up_no_other_program(function: str | None) -> None:
    """The clocks of other programs go on in other threads, which Python's lock would keep from looking at them."""
    output = NESTED if function else b"a " * (8 << 20)
    began = time.monotonic()
    with clock() as longest:
        assert not is_correct(problem([1], function=function), 0, output)
    assert longest[0] < max(0.5, (time.monotonic() - began) / 2)
