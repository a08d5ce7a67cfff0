"""APPS rows to examples, by eye."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.schemas.rows import Example
from packtrain.stages.prep import Options
from packtrain.stages.prep.apps import AppsFormat, fenced, function_of

ROW = {
    "id": 4,
    "question": "Add two numbers.\n",
    "solutions": json.dumps(["print(sum(map(int, input().split())))\n", "a, b = map(int, input().split())\n"]),
    "input_output": json.dumps({"inputs": ["1 2\n"], "outputs": ["3\n"]}),
    "difficulty": "introductory",
    "url": "",
    "starter_code": "",
}
CALLED = {
    "starter_code": "\ndef add(a, b):\n\t",
    "input_output": json.dumps({"fn_name": "add", "inputs": [[1, 2]], "outputs": [3]}),
}


def examples(options: Options | None = None, **changes: Any) -> list[Example]:
    made = AppsFormat(options)
    return made.prepare([(3, json.dumps(ROW | changes).encode())]).examples


def prompt_of(**changes: Any) -> str:
    prompt = examples(Options(prompt_only=True), **changes)[0].prompt
    assert isinstance(prompt, list)
    assert len(prompt) == 1
    assert prompt[0]["role"] == "user"
    return str(prompt[0]["content"])


def test_chat_call_based() -> None:
    assert "reads standard input" in prompt_of(starter_code="def f():")
    assert prompt_of(input_output="") == "Add two numbers.\n\nSolve this in Python."
    assert prompt_of(**CALLED) == (
        "Add two numbers.\n\n"
        "Starter code:\n\n```python\ndef add(a, b):\n```\n\n"
        "Your Python code will be tested by calling `add`: return the answer, do not print it."
    )


@pytest.mark.parametrize(
    ("tests", "function"),
    [
        *((one, None) for one in (None, "", "  ", "{}", "[1]", "{", 5)),
        ([1], None),
        ({}, None),
        *((one, None) for one in ('{"fn_name": 5}', '{"fn_name": ""}')),
        *((one, "") for one in ('{"inputs": ["fn_name"], "outputs": []}', '{"fn_name": null, "inputs": []}')),
        *((one, "f") for one in ('{"fn_name": "f"}', {"fn_name": "f", "inputs": []})),
        ({"inputs": []}, ""),
        ('{"inputs": ["' + "1 " * 500_000 + '"]}', ""),
        ('{"inputs": ["' + "1 " * 500_000 + '"], "fn_name": "f"}', "f"),
        ('{"inputs": [[' + "7" * 5_000 + ']], "fn_name": "f"}', "f"),
        ('{"inputs": ["fn_name' + "1 " * 500_000, None),
    ],
)
def test_function_of(tests: Any, function: str | None) -> None:
    assert function_of(SimpleNamespace(question="q", input_output=tests)) == function


@given(st.text(alphabet="`\nx ", max_size=30))
def test_a_fence_closes_where_it_should(code: str) -> None:
    opening, *inside, closing = fenced(code).split("\n")
    assert "\n".join(inside) == code
    assert opening == closing + "python"
    assert set(closing) == {"`"}
    assert closing not in code
