"""Several sandboxes at once: none takes what another may use, and each gives its own results."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from packtrain.pipeline.judge.sandbox.programs import Ending, Execution, Program, Sandbox

from tests.pipeline.judge.sandbox.conftest import QUICK

FORKS = """
import os, time
number, started = input(), 1
try:
    while True:
        if not os.fork():
            time.sleep(60)
        started += 1
except BlockingIOError:
    print(number, started, len(os.listdir()), os.getuid())
    open('left', 'w').close()
    time.sleep(0.5)
"""


@pytest.mark.slow
def test_each_may_start_all_its_processes(sandbox: Sandbox) -> None:
    together = threading.Barrier(4)

    def run(number: int) -> list[Execution]:
        together.wait()
        tests = (b"%d" % number, b"%d" % (number + 10))
        return list(sandbox.run(Program(FORKS, None, tests), replace(QUICK, wall_seconds=10)))

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(run, range(4)))
    assert [one.ending for all_of in found for one in all_of] == [Ending.finished] * 8
    said = [one.output.split() for all_of in found for one in all_of]
    assert [int(number) for number, *_ in said] == [0, 10, 1, 11, 2, 12, 3, 13]
    assert all(QUICK.processes - 2 <= int(started) <= QUICK.processes + 1 for _, started, *_ in said), said
    assert {left for _, _, left, _ in said} == {b"0"}
