"""Results that a thread makes ahead of a trainer: in order, as many as asked for, and errors when their turn comes."""

import threading

import pytest
from packtrain.training.prefetch import results_ahead


@pytest.mark.parametrize("count", [1, 2, 5])
def test_as_many_results_are_made_ahead_as_asked_for(count: int) -> None:
    """While the caller works with a result, the thread makes the next `count`, and no more."""
    made: list[int] = []
    made_one = threading.Semaphore(0)

    def make(task: int) -> int:
        made.append(task)
        made_one.release()
        return task * task

    results = results_ahead(make, range(20), count, str)
    for task in range(10):
        assert next(results) == task * task
        for _ in range(count + 1 if task == 0 else 1):
            assert made_one.acquire(timeout=30), f"{made} are made while the caller works with {task}"
        assert made == list(range(task + count + 1))
    assert list(results) == [task * task for task in range(10, 20)]
    assert made == list(range(20))


def test_nothing_is_made_ahead_without_a_thread() -> None:
    made: list[int] = []
    results = results_ahead(made.append, range(3), 0, str)
    for task in range(3):
        next(results)
        assert made == list(range(task + 1))


def test_an_error_comes_when_its_turn_comes() -> None:
    results = results_ahead(lambda task: 6 // task, [3, 2, 0, 1], 3, str)
    assert [next(results), next(results)] == [2, 3]
    with pytest.raises(ZeroDivisionError):
        next(results)
