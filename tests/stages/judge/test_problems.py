"""Problems and their tests, in the forms that real data has."""

import json
from typing import Any

import pytest
from packtrain.schemas.errors import RowRejectedError
from packtrain.stages.judge.problems import UNRATED, expected_texts, parse_problem
from packtrain.stages.prep import make_format


def row(tests: Any, **more: Any) -> Any:
    line = {"question": "Add.", "id": 7, "input_output": tests, **more}
    return make_format("apps").convert(line)


def test_programs_that_read_standard_input() -> None:
    tests = {"inputs": ["1 2\n", ["3", "4\n"], 5], "outputs": ["3\n", ["7\n"], 5]}
    for form in (tests, json.dumps(tests)):
        found = parse_problem(row(form, difficulty="interview", solutions='["print(1)"]'), 4)
        assert (found.row, found.id, found.difficulty, found.function) == (4, "7", "interview", None)
        assert found.inputs == (b"1 2\n", b"3\n4\n", b"5\n")
        assert found.expected == ("3\n", ["7\n"], 5)
        assert found.solutions == ("print(1)",)
        assert not found.is_wrapped


def test_programs_that_are_called() -> None:
    tests = {"fn_name": "f", "inputs": [[1, "a"], '2\r\n"b\u2028"\n'], "outputs": [[True], [False]]}
    found = parse_problem(row(tests), 0)
    assert found.function == "f"
    assert found.inputs == (b'[1, "a"]', '[2, "b\u2028"]'.encode())
    assert found.is_wrapped
    assert found.difficulty == UNRATED
    assert not parse_problem(row({"fn_name": "f", "inputs": [[1], [2]], "outputs": [[1], 2]}), 0).is_wrapped
    assert not parse_problem(row({"fn_name": "f", "inputs": [[1], [2]], "outputs": [[1], [2, 3]]}), 0).is_wrapped


def test_large_numbers_keep_all_digits() -> None:
    number = 10**40 + 1
    found = parse_problem(row(json.dumps({"fn_name": "f", "inputs": [[number]], "outputs": [number]})), 0)
    assert json.loads(found.inputs[0]) == [number]
    assert found.expected == (number,)


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        ("4\n", ("4",)),
        (["4\n", "5"], ("4\n5",)),
        ([8], ("8",)),
        ([True], ("True", "true")),
        ([None], ("None", "null")),
        ([[65, 24]], ("[65, 24]",)),
        ([["a", 1]], ("['a', 1]", '["a", 1]')),
        (0.5, ("0.5",)),
        ("", ("",)),
    ],
)
def test_a_line_that_is_no_text_may_be_written_as_python_or_json_does(value: Any, texts: tuple[str, ...]) -> None:
    assert expected_texts(value) == texts


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        ("", "no_tests"),
        (" ", "no_tests"),
        (None, "no_tests"),
        ("null", "no_tests"),
        ({}, "no_tests"),
        ({"inputs": [], "outputs": []}, "no_tests"),
        ("{", "bad_tests"),
        ("[" * 500 + "]" * 500, "bad_tests"),
        ('{"outputs": [1], "inputs": ' + "[" * 500 + "]" * 500 + "}", "too_deep"),
        ("[" * 200_000, "bad_tests"),
        ("[1]", "bad_tests"),
        ({"inputs": ["1"], "outputs": []}, "bad_tests"),
        ({"inputs": "1", "outputs": "1"}, "bad_tests"),
        ({"fn_name": 3, "inputs": [[1]], "outputs": [1]}, "bad_tests"),
        ({"fn_name": "f", "inputs": [1], "outputs": [1]}, "bad_tests"),
        ({"fn_name": "f", "inputs": ["x"], "outputs": [1]}, "bad_tests"),
        (json.dumps({"fn_name": "f", "inputs": [["ok"], ["\ud800"]], "outputs": ["1", "2"]}), "bad_tests"),
        (json.dumps({"inputs": [["ok"], ["\ud800"]], "outputs": ["1", "2"]}), "bad_tests"),
    ],
)
def test_tests_that_cannot_be_used(tests: Any, reason: str) -> None:
    with pytest.raises(RowRejectedError) as refused:
        parse_problem(row(tests), 0)
    assert refused.value.reason == reason
