"""Scores by difficulty."""

import numpy as np
import pytest
from packtrain.stages.judge.passk import estimate
from packtrain.stages.judge.scores import ProblemTally, compare, difficulties, scores


def tallies() -> dict[int, ProblemTally]:
    return {
        0: ProblemTally("interview", 4, 2),
        1: ProblemTally("interview", 4, 0),
        2: ProblemTally("introductory", 4, 4),
        3: ProblemTally("introductory", 2, 1),
        4: ProblemTally("rare", 0, 0),
    }


def test_scores_by_hand() -> None:
    whole, easy, middle = scores(tallies(), [1, 4])
    assert (whole.name, whole.problems, whole.samples, whole.passed) == ("all", 4, 14, 7)
    assert whole.estimates[1].value == pytest.approx((0.5 + 0 + 1 + 0.5) / 4)
    assert whole.estimates[1] == estimate(np.array([0.5, 0.0, 1.0, 0.5]))
    assert whole.estimates[4].value == pytest.approx(2 / 3)  # the problem with two samples is left out
    assert whole.estimates[4].problems == 3
    assert (easy.name, easy.estimates[1].value) == ("introductory", 0.75)
    assert (middle.name, middle.estimates[1].value) == ("interview", 0.25)


def test_a_k_that_no_problem_has_is_absent() -> None:
    assert scores({0: ProblemTally("a", 2, 1)}, [1, 5])[0].estimates.keys() == {1}
    assert scores({}, [1])[0].estimates == {}


def test_a_difficulty_with_the_name_of_the_whole_does_not_replace_it() -> None:
    found = scores({0: ProblemTally("all", 1, 1), 1: ProblemTally("b", 1, 0)}, [1])
    assert [(one.name, one.problems) for one in found] == [("all", 2), ("b", 1)]


def test_comparing_uses_the_problems_of_both() -> None:
    other = {0: ProblemTally("interview", 4, 1), 2: ProblemTally("introductory", 4, 2), 9: ProblemTally("x", 4, 4)}
    found = compare(tallies(), other, [1])
    assert found["all"][1].value == pytest.approx((0.25 + 0.5) / 2)
    assert found["all"][1].problems == 2
    assert found["interview"][1].value == pytest.approx(0.25)
    assert "x" not in found


def test_difficulties_are_in_their_order() -> None:
    assert difficulties(["zeta", "competition", "introductory", "alpha", "interview", "alpha"]) == [
        "introductory", "interview", "competition", "alpha", "zeta",
    ]  # fmt: skip
