"""Outcomes come in the order of the tasks, whole, and with the error that ended them; no thread is left waiting."""

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from packtrain.training.loader.threads import Threads


def numbers(task: range) -> Iterator[int]:
    for number in task:
        if number == 7:
            raise TimeoutError("of the store")
        yield number


@pytest.mark.parametrize("count", [1, 4])
def test_outcomes_and_errors(count: int) -> None:
    threads = Threads(numbers, count, "test")
    queues = [threads.submit(range(begin, begin + 3)) for begin in range(0, 3000, 3)]
    for begin, queue in zip(range(0, 3000, 3), queues, strict=True):
        made, error = queue.get(timeout=10)
        assert made == [number for number in range(begin, begin + 3) if begin != 6 or number < 7]
        assert (str(error) == "of the store") == (begin == 6)
    threads.close()


def test_a_thread_starts_again_after_a_pause() -> None:
    """Each task is asked for when the last is done, so a thread may just be about to end."""
    threads: Threads[int, int] = Threads(lambda task: iter([task]), 2, "test")
    for task in range(3000):
        assert threads.submit(task).get(timeout=10) == ([task], None)
    threads.close()


def test_what_has_not_begun_is_dropped() -> None:
    begun, go, done = threading.Event(), threading.Event(), []

    def work(task: int) -> Iterator[int]:
        begun.set()
        go.wait(10)
        done.append(task)
        yield task

    threads = Threads(work, 1, "test")
    first = threads.submit(0)
    later = threads.submit(1)
    assert begun.wait(10)
    threads.close()
    go.set()
    assert first.get(timeout=10) == ([0], None)
    assert done == [0]
    assert later.empty()


def test_a_program_ends_while_threads_are_open() -> None:
    program = (
        "from packtrain.training.loader.threads import Threads\n"
        "threads = Threads(lambda task: iter([task]), 3, 'test')\n"
        "print(threads.submit(5).get())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "([5], None)\n")
