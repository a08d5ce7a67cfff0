"""What well-behaved programs find in a sandbox: their input, the library, their output and their values."""

import json
import os
import resource
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from packtrain.pipeline.judge.sandbox import open_sandbox
from packtrain.stages.judge.comparators import Verdict

from tests.pipeline.judge.conftest import QUICK, Run

TEXT = b"first\nsecond \xc3\xa9\nlast"


@pytest.mark.parametrize(
    "code",
    [
        "import sys\nfor line in sys.stdin: print(line, end='')",
        "import sys\nsys.stdout.write(sys.stdin.read())",
        "import sys\nwhile line := sys.stdin.buffer.readline(): sys.stdout.buffer.write(line)",
        "print(input()); print(input()); print(input(), end='')",
        "print(open(0, encoding='utf-8').read(), end='')",
        "import os\nwhile part := os.read(0, 3): os.write(1, part)",
        "import sys\nout = open(1, 'wb')\nout.write(sys.stdin.buffer.read())",  # never closed
        "import sys, io, atexit\nout = io.BytesIO(sys.stdin.buffer.read())\n"
        "atexit.register(lambda: sys.__stdout__.buffer.write(out.getvalue()))",
        "import sys\nclass Out:\n  def write(self, text): self.text = text\n"
        "  def flush(self): sys.__stdout__.write(self.text)\nsys.stdout = Out()\nsys.stdout.write(sys.stdin.read())",
        "import sys, threading\ndef main():\n  print(sys.stdin.read(), end='')\n  sys.stdout.flush()\n"
        "sys.setrecursionlimit(10**6); threading.stack_size(1 << 26); threading.Thread(target=main).start()",
        "import sys\nprint(sys.stdin.read(), end='')\nexit()",
        "import sys\nprint(sys.stdin.read(), end='')\nsys.exit(0)",
        "import sys, os\nsys.stdout.write(sys.stdin.read()); sys.stdout.flush(); os._exit(0)",
    ],
)
def test_every_way_to_read_and_write(run: Run, code: str) -> None:
    tests = (TEXT, b"", TEXT) if "input()" not in code else (TEXT,)
    done = run(f"if __name__ == '__main__':\n  pass\n{code}", *tests)
    assert [(one.failure, one.output) for one in done] == [(None, test) for test in tests], done


def test_input_and_output_may_be_large(run: Run) -> None:
    large = b"0123456789abcde\n" * 60_000  # 0.9 MiB both ways, written while it is read
    (done,) = run("import sys\nfor line in sys.stdin: sys.stdout.write(line)", large)
    assert done.failure is None
    assert done.output == large
    (done,) = run("print('not read')", large)
    assert (done.failure, done.output) == (None, b"not read\n")


@pytest.mark.parametrize(
    ("code", "ending", "stderr"),
    [
        ("1 / 0", Verdict.runtime_error, "ZeroDivisionError: division by zero"),
        ("import sys; sys.exit(3)", Verdict.runtime_error, ""),
        ("import sys; sys.exit('wrong')", Verdict.runtime_error, "wrong"),
        ("import os; os.abort()", Verdict.runtime_error, ""),
        ("def", Verdict.runtime_error, "SyntaxError"),
        ("raise MemoryError", Verdict.memory, "MemoryError"),
        ("\0", Verdict.runtime_error, "null byte"),
        ("import atexit; atexit.register(print, 'late')", None, ""),
        ("import sys; sys.stdout.close()", None, ""),
        ("import numpy", Verdict.runtime_error, "No module named 'numpy'"),
    ],
)
def test_how_programs_end(run: Run, code: str, ending: Verdict | None, stderr: str) -> None:
    (done,) = run(code)
    assert done.failure is ending
    assert stderr in done.stderr
    assert "driver" not in done.stderr


def test_a_traceback_names_lines_of_the_program_alone(run: Run) -> None:
    (done,) = run("def f():\n    return {}[1]\nf()")
    assert done.stderr == (
        "Traceback (most recent call last):\n"
        '  File "program.py", line 3, in <module>\n  File "program.py", line 2, in f\nKeyError: 1\n'
    )


CALLS = """
class Solution:
    def twice(self, numbers: List[int], more: Optional[int] = None) -> List[int]:
        return [2 * one for one in numbers] + ([more] if more else [])
    def names(self):
        assert pow(2, 5, 7) == 4 and open and datetime(2020, 1, 1).year == 2020
        return [str(deque([1])), defaultdict(list)[0], Counter("aab"), inf > 1, heapq.nsmallest(1, [2, 1]),
                bisect_left([1, 2], 2), gcd(4, 6), math.pi > 3, cache(lambda: 1)(), list(accumulate([1, 2])),
                collections.deque([3]).pop(), string.digits, re.sub("a", "b", "a"), reduce(add, [1, 2]),
                heappop([1]), copy.deepcopy([1]), functools.reduce(max, [1, 2]), sys.maxsize > 0]
def alone(text): return {"text": text, "none": None, "true": True, "tuple": (1, 2.5)}
def unsayable(): return {1, 2}
def nothing(): pass
def shouts(): print("passed"); return "quiet"
def main_only(): return __name__
if __name__ == "__main__":
    raise SystemExit("not for calls")
"""


@pytest.mark.parametrize(
    ("function", "arguments", "value"),
    [
        ("twice", [[1, 2]], [2, 4]),
        ("twice", [[1], 7], [2, 7]),
        ("names", [], ["deque([1])", [], {"a": 2, "b": 1}, True, [1], 1, 2, True, 1, [1, 3], 3, "0123456789", "b", 3,
                       1, [1], 2, True]),
        ("alone", ["é\n\U0001f600"], {"text": "é\n\U0001f600", "none": None, "true": True, "tuple": [1, 2.5]}),
        ("nothing", [], None),
        ("shouts", [], "quiet"),
        ("main_only", [], "solution"),
    ],
)  # fmt: skip
def test_calls_return_values(run: Run, function: str, arguments: list[object], value: object) -> None:
    test = json.dumps(arguments).encode()
    done = run(CALLS, test, test, function=function)
    assert [one.failure for one in done] == [None] * 2, done[0].stderr
    assert [json.loads(one.output) for one in done] == [value] * 2


@pytest.mark.parametrize(
    ("function", "test", "stderr"),
    [
        ("unsayable", b"[]", "TypeError: Object of type set is not JSON serializable"),
        ("nosuch", b"[]", "the program defines no 'nosuch'"),
        ("gcd", b"[4, 6]", "the program defines no 'gcd'"),  # which it finds without an import
        ("alone", b"[]", "missing 1 required positional argument"),
        ("alone", b"[1, 2]", "takes 1 positional argument"),
    ],
)
def test_calls_that_do_not_return(run: Run, function: str, test: bytes, stderr: str) -> None:
    (done,) = run(CALLS, test, function=function)
    assert done.failure is Verdict.runtime_error
    assert stderr in done.stderr


@pytest.mark.slow
def test_recursion_goes_as_deep_as_memory_allows(run: Run) -> None:
    plain = "import sys\nsys.setrecursionlimit(10**6)\ndef f(n): return n and 1 + f(n - 1)\nprint(f(100000))"
    through_c = plain.replace("def f", "import functools\n@functools.cache\ndef f").replace("100000", "20000")
    limits = replace(QUICK, memory_bytes=1 << 30)
    assert [run(code, limits=limits)[0].output for code in (plain, through_c)] == [b"100000\n", b"20000\n"]


@pytest.mark.parametrize("unsafe", [False, True])
def test_the_standard_library_is_there(unsafe: bool) -> None:
    code = "import fileinput, cProfile, pprint, email.message, sqlite3, zoneinfo\nprint(1)"
    done = open_sandbox(unsafe=unsafe).run(code, None, b"", QUICK)
    assert (done.failure, done.output) == (None, b"1\n"), done.stderr


@pytest.mark.parametrize(
    ("code", "ending", "output"),
    [
        ("print(input())", None, b"in\n"),
        ("while True: pass", Verdict.timeout, b""),
        ("bytearray(1 << 40)", Verdict.memory, b""),
        ("import sys; sys.stdout.close()", None, b""),
        ("import os\nwhile True: os.write(1, bytes(1 << 16))", Verdict.output_limit, None),
    ],
)
def test_without_a_sandbox_limits_hold(code: str, ending: Verdict | None, output: bytes | None) -> None:
    done = open_sandbox(unsafe=True).run(code, None, b"in", QUICK)
    assert done.failure is ending
    assert output is None or done.output == output


STEPS = [
    "print('passed'); os._exit(0)",
    "sys.exit(0)",
    "exit()",
    "raise SystemExit",
    "sys.stdout.write('[1]'); sys.stdout.flush(); os._exit(0)",
    "os.close(3); return 1",
    "os.dup2(1, 3); return 1",
    "os.write(3, b'1'); os.abort()",
    "os.write(3, b'1'); os._exit(1)",
    "os.write(3, b'1'); raise ValueError",
    "os.write(3, b'1'); os.kill(os.getpid(), 9)",
    "return EqualsAll()",
    "os.execv(sys.executable, [sys.executable, '-c', 'print([1])'])",
]


@pytest.mark.parametrize("body", STEPS)
def test_what_is_not_returned_is_no_value(run: Run, body: str) -> None:
    head = "import os, sys\nclass EqualsAll:\n  def __eq__(self, other): return True\n"
    for done in run(f"{head}def f(one):\n  {body}\n  return one", b"[1]", b"[2]", function="f"):
        assert done.failure is Verdict.runtime_error, done


def test_the_program_holds_its_four_files_in_memory_and_nothing_else(run: Run) -> None:
    code = """
import os, stat
def f():
    kinds = []
    for fd in range(4096):
        try:
            kinds.append((fd, stat.S_ISREG(os.fstat(fd).st_mode)))
        except OSError:
            pass
    return kinds
"""
    with ExitStack() as many:  # descriptors, as where many programs run at once
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        many.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(min(1_050, hard - 100)):
            many.enter_context(Path(os.devnull).open())
        (done,) = run(code, b"[]", function="f")
    assert json.loads(done.output) == [[0, True], [1, True], [2, True], [3, True]]


def test_values_that_json_cannot_say_are_none(run: Run) -> None:
    code = """
def f(kind):
    if kind == 'circle':
        value = []; value.append(value); return value
    if kind == 'deep':
        value = []
        for _ in range(100000): value = [value]
        return value
    if kind == 'huge':
        return 10 ** 100000
    return float('inf')
"""
    kinds = ("circle", "deep", "huge", "inf")
    done = run(code, *(json.dumps([kind]).encode() for kind in kinds), function="f")
    assert [one.failure for one in done] == [Verdict.runtime_error] * 3 + [None]
    assert done[3].output == b"Infinity"
