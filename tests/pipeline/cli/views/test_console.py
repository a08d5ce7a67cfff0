"""Progress as plain lines."""

import time
from io import StringIO

import pytest
from packtrain.pipeline.cli.views.console import ConsoleObserver, EscapingConsole


def test_the_time_left_is_measured_from_the_first_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """160 samples in batches of 16, of which each takes 10 s, after 50 s without an answer."""
    clock, stream = [0.0], StringIO()
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    observer = ConsoleObserver(EscapingConsole(file=stream, width=120))
    observer.begin("sample", 160, "samples")
    for clock[0] in (60.0, 70.0, 80.0):
        for _ in range(16):
            observer.advance(1, rows=1)
    assert stream.getvalue().splitlines() == [
        "sample: 1%, 0.02 samples/s",
        "sample: 11%, 0.2 samples/s, 1 min 29 s left",
        "sample: 21%, 0.4 samples/s, 1 min 19 s left",
    ]
    observer.begin("encode", 160, "B")
    clock[0] = 100.0
    observer.advance(80, rows=40)
    assert stream.getvalue().splitlines()[-1] == "encode: 50%, 2 rows/s"
