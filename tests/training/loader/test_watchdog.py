"""A batch that does not arrive: the loader reports who waits, for what and how long, and gives up in the end."""

import logging
import math
import os
import re
import threading
import time
from pathlib import Path
from queue import SimpleQueue

import pytest

torch = pytest.importorskip("torch")

from packtrain.schemas.errors import StalledError  # noqa: E402
from packtrain.training import PackedLoader, Watchdog  # noqa: E402


def holding(*items: int) -> "SimpleQueue[int]":
    queue: SimpleQueue[int] = SimpleQueue()
    for item in items:
        queue.put(item)
    return queue


def test_a_result_that_is_there_costs_nothing() -> None:
    assert Watchdog().wait(holding(3), lambda: pytest.fail("nothing was waited for")) == 3


def test_reports_come_after_twice_as_long_each(caplog: pytest.LogCaptureFixture) -> None:
    queue = holding()
    began = time.monotonic()
    threading.Timer(0.5, queue.put, [7]).start()
    with caplog.at_level(logging.WARNING):
        assert Watchdog(report_after=0.1, give_up_after=None).wait(queue, lambda: "rank 0 waits for step 5") == 7
    texts = [record.getMessage() for record in caplog.records]
    assert 1 <= len(texts) <= 1 + math.log2((time.monotonic() - began) / 0.1)  # after 0.1 s, 0.2 s, 0.4 s
    assert re.fullmatch(r"rank 0 waits for step 5; \d+\.\d s by now", texts[0])


def test_it_gives_up() -> None:
    began = time.monotonic()
    with pytest.raises(StalledError, match=r"rank 0 waits; gave up after 0\.2 s"):
        Watchdog(report_after=100, give_up_after=0.2).wait(holding(), lambda: "rank 0 waits")
    assert time.monotonic() - began < 50


def test_a_loader_whose_disk_hangs_says_where(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A shard that is a pipe nobody writes to: opening it hangs, as on a network disk that is gone."""
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    loader = PackedLoader(
        copy,
        rows_per_step=2,
        rank=1,
        world_size=2,
        order="sequential",
        balance=None,
        watchdog=Watchdog(report_after=0.1, give_up_after=0.5),
    )
    held = loader.corpus.parts[0].files.hold
    hanging = threading.Event()

    def hang(name: str, bytes: int, sha256: str) -> object:
        os.mkfifo(tmp_path / "pipe")
        hanging.set()
        descriptor = os.open(tmp_path / "pipe", os.O_RDONLY)  # until somebody opens the other end
        os.close(descriptor)
        return held(name, bytes, sha256)

    loader.corpus.parts[0].files.hold = hang  # type: ignore[method-assign,assignment]
    first = loader.corpus.url_of(0)
    try:
        with caplog.at_level(logging.WARNING), pytest.raises(StalledError) as caught:
            next(iter(loader))
    finally:
        hanging.wait(10)
        os.close(os.open(tmp_path / "pipe", os.O_WRONLY))
    assert f"rank 1 of 2 waits for step 0, whose rows are in {first}" in str(caught.value)
    assert any("by now" in record.getMessage() for record in caplog.records)
