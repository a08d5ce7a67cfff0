"""The program in an answer."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.stages.judge.extraction import extract_program
from packtrain.stages.prep.apps import fenced

from tests.support.examples import examples

CASES = {
    "one fence": ("Here:\n```python\nprint(1)\n```\nDone.", "print(1)"),
    "the last of two": (
        "```python\nprint(1)\n```\nBetter:\n```python\nprint(2)\n```", "print(2)",
    ),
    "output after the program": (
        "```python\nprint(1)\n```\nIt prints\n```\n1\n```", "print(1)",
    ),
    "no label": ("```\nprint(1)\n```", "print(1)"),
    "py, upper case": ("```Py\nprint(1)\n```", "print(1)"),
    "attributes": ("```{.python .numberLines}\nprint(1)\n```", "print(1)"),
    "tildes": ("~~~python\nprint(1)\n~~~", "print(1)"),
    "cut": ("So:\n```python\nprint(1)\nprint(", "print(1)\nprint("),
    "cut after an example": ("Input\n```\n1 2\n```\n```python\nprint(1)", "print(1)"),
    "cut, no label": ("```\nprint(1)", "print(1)"),
    "windows": ("```python\r\nprint(1)\r\n```\r\n", "print(1)"),
    "longer fence holds a shorter one": (
        "````python\ns = '''\n```\n'''\n````", "s = '''\n```\n'''",
    ),
    "an empty fence does not count": ("```python\nprint(1)\n```\n```python\n```", "print(1)"),
    "bare": ("n = int(input())\nprint(n)\n", "n = int(input())\nprint(n)\n"),
    "bare function": ("def f(x):\n    return x\n", "def f(x):\n    return x\n"),
    "words": ("I cannot solve this, for it is hard.", ""),
    "empty": ("", ""),
    "another language": ("```cpp\nint main() {}\n```", ""),
    "after thinking": (
        "<think>```python\nprint(0)\n```</think>\n```python\nprint(1)\n```", "print(1)",
    ),
    "only in thinking": ("<think>```python\nprint(0)\n```", ""),
    "a template that opened it": ("hm ```python\nprint(0)\n```</think>print(1)", "print(1)"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_cases(name: str) -> None:
    answer, code = CASES[name]
    assert extract_program(answer) == code


@given(st.text(st.characters(codec="utf-8", exclude_characters="\r")), st.text(max_size=40))
@examples(300)
def test_what_training_puts_into_a_fence_comes_out_of_it(code: str, before: str) -> None:
    """References that are written as answers, as `prep` writes them, are judged as what they are."""
    code = code.rstrip()
    before = before.replace("`", "").replace("~", "").replace("<", "")
    found = extract_program(f"{before}\n{fenced(code)}")
    if not code.strip() or "<think>" in code or "</think>" in code:
        return
    assert found == code


@pytest.mark.parametrize("answer", ["a,\n" * 100_000, "~" * 300_000 + "`", "~~~" + " " * 300_000 + "`"], ids=range(3))
def test_hostile_answers_take_linear_time(answer: str) -> None:
    started = time.process_time()
    extract_program(answer)
    assert time.process_time() - started < 20  # hours, where a pattern goes back over what it has seen
