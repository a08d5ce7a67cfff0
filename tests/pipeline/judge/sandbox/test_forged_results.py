"""Programs that attack their verdict: what counts as returned is what a call returned, of this test and no other."""

import json
import threading
from dataclasses import replace

import pytest
from packtrain.pipeline.judge.sandbox.programs import Ending, Program, Sandbox

from tests.pipeline.judge.sandbox.conftest import MIB, QUICK, Run, processes

STEAL = """
import gc, os, sys, time
def steal():
    "The nonce, out of the frames of the code that called us."
    frame = sys._getframe()
    while frame:
        if 'nonce' in frame.f_locals:
            return frame.f_locals['nonce']
        frame = frame.f_back
"""


@pytest.mark.parametrize(
    "body",
    [
        "print('passed'); os._exit(0)",
        "sys.exit(0)",
        "exit()",
        "raise SystemExit",
        "sys.stdout.write('[1]'); sys.stdout.flush(); os._exit(0)",
        "[os.write(fd, b'[1]') for fd in (1, 2, 3)]; os._exit(0)",
        "[os.write(fd, bytes(32) + b'[1]') for fd in (1, 2, 3)]; os._exit(0)",
        "os.close(3); return 1",
        "os.dup2(1, 3); return 1",
        "os.write(3, steal() + b'1'); os.abort()",
        "os.write(3, steal() + b'1'); os._exit(1)",
        "os.write(3, steal() + b'1'); raise ValueError",
        "os.write(3, steal() + b'1'); os.kill(os.getpid(), 9)",
        "return EqualsAll()",
        "os.execv(sys.executable, [sys.executable, '-c', 'print([1])'])",
    ],
)
def test_what_is_not_returned_is_no_value(run: Run, body: str) -> None:
    code = f"{STEAL}\nclass EqualsAll:\n  def __eq__(self, other): return True\ndef f(one):\n  {body}\n  return one"
    for done in run(code, b"[1]", b"[2]", function="f"):
        assert (done.ending, done.value) == (Ending.error, None), done


@pytest.mark.slow
def test_a_value_that_comes_too_late_is_none(run: Run) -> None:
    (done,) = run(f"{STEAL}\ndef f():\n  os.write(3, steal() + b'1')\n  time.sleep(9)", b"[]", function="f")
    assert (done.ending, done.value) == (Ending.timeout, None)


def test_a_stolen_nonce_gives_ones_own_value_and_nothing_else(run: Run) -> None:
    """As the docstring of `launch.py` says: it is no more than returning the value."""
    code = f"""{STEAL}
def f(forge):
    if forge:
        nonce = steal()
        assert len(nonce) == 32
        os.write(3, nonce + b'"forged"')
        os._exit(0)
    return steal().hex()
"""
    before, forged, after = run(code, b"[false]", b"[true]", b"[false]", function="f")
    assert [one.ending for one in (before, forged, after)] == [Ending.finished] * 3
    assert forged.value == b'"forged"'
    assert before.value is not None
    assert len(before.value) == 66
    assert before.value != after.value  # each test has a nonce of its own


def test_two_results_are_one_that_is_no_json(run: Run) -> None:
    done, after = run(
        f"{STEAL}\ndef f(one):\n  if one: os.write(3, steal() + b'1')\n  return 2", b"[1]", b"[0]", function="f"
    )
    assert done.value is not None
    with pytest.raises(ValueError, match="Extra data"):
        json.loads(done.value)
    assert after.value == b"2"


def test_replaced_builtins_change_nothing_outside(run: Run) -> None:
    code = """
import builtins, json, os, sys, threading, atexit, gc
if open(0).read() == '' or True:
    json.JSONEncoder.encode = json.dumps = lambda *_: '"forged"'
    json.loads = eval = lambda *_: ['forged']
    builtins.len = builtins.isinstance = builtins.memoryview = lambda *_: True
    sys.modules.clear()
def f(one):
    for found in gc.get_objects():
        if type(found) is dict and 'run_test' in found:
            found['run_test'] = found['answer'] = found['confine'] = None
    return one
"""
    first, second = run(code, b'["true"]', b'["true"]', function="f")
    for done in (first, second):  # of its own value it is the master, whatever it does; the next test is as the first
        assert (done.ending, done.value) in ((Ending.error, None), (Ending.finished, b'"true"'))
    assert (first.ending, first.value) == (second.ending, second.value)


def test_the_program_does_not_hold_the_driver_s_socket(run: Run) -> None:
    code = """
import os, stat
def f():
    kinds = []
    for fd in range(256):
        try:
            kinds.append((fd, stat.S_ISFIFO(os.fstat(fd).st_mode)))
        except OSError:
            pass
    return kinds
"""
    (done,) = run(code, b"[]", function="f")
    assert json.loads(done.value or b"?") == [[0, True], [1, True], [2, True], [3, True]]


@pytest.mark.slow
def test_a_value_of_100_mb_is_not_kept(run: Run) -> None:
    limits = replace(QUICK, memory_bytes=1024 * MIB, wall_seconds=5, cpu_seconds=5)
    big, small = run(
        "def f(size): return 'x' * size", b"[100000000]", b"[5]", function="f", limits=limits
    )  # fmt: skip
    assert (big.ending, big.value) == (Ending.output_limit, None)
    assert small.value == b'"xxxxx"'


def test_values_that_json_cannot_say_end_the_test_alone(run: Run) -> None:
    code = """
import sys
def f(kind):
    if kind == 'circle':
        value = []; value.append(value); return value
    if kind == 'deep':
        value = []
        for _ in range(100000): value = [value]
        return value
    if kind == 'huge':
        return 10 ** 100000
    if kind == 'liar':
        return type('Liar', (dict,), {'items': lambda self: [('a', 1)]})(b=2)
    return float('inf')
"""
    kinds = ("circle", "deep", "huge", "liar", "inf")
    done = run(code, *(json.dumps([kind]).encode() for kind in kinds), function="f")
    endings = {kind: (one.ending, one.value) for kind, one in zip(kinds, done, strict=True)}
    assert endings == {
        "circle": (Ending.error, None),
        "deep": (Ending.error, None),
        "huge": (Ending.error, None),
        "liar": (Ending.finished, endings["liar"][1]),
        "inf": (Ending.finished, b"Infinity"),
    }


@pytest.mark.slow
def test_a_driver_that_dies_is_an_error_of_its_test_alone(sandbox: Sandbox, marked: str) -> None:
    """Killed from outside, because programs cannot. What is left of it goes, and the next test gets a new launch."""
    code = "import time\nnumber = input()\ntime.sleep(1 if number == '2' else 0)\nprint(number)"
    tests = sandbox.run(Program(code, None, (b"1", b"2", b"3", b"4")), QUICK)
    found = [next(tests)]
    killed = []

    def kill() -> None:
        for one in processes(marked):
            if one.cmdline()[1:4] == ["-I", "-S", "-B"] and one.children():
                one.kill()
                killed.append(one)

    timer = threading.Timer(0.3, kill)
    timer.start()
    found += tests
    timer.join()
    assert len(killed) == 1
    assert [(one.ending, one.output) for one in found] == [
        (Ending.finished, b"1\n"),
        (Ending.error, b""),
        (Ending.finished, b"3\n"),
        (Ending.finished, b"4\n"),
    ]
