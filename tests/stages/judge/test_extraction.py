"""The program in an answer, and the rule that found it."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.stages.judge.extraction import ExtractedCode, Extraction, extract
from packtrain.stages.prep.apps import fenced

from tests.support.examples import examples

CASES = {
    "one fence": ("Here:\n```python\nprint(1)\n```\nDone.", "print(1)", Extraction.python_fence),
    "the last of two": (
        "```python\nprint(1)\n```\nBetter:\n```python\nprint(2)\n```", "print(2)", Extraction.python_fence,
    ),
    "output after the program": (
        "```python\nprint(1)\n```\nIt prints\n```\n1\n```", "print(1)", Extraction.python_fence,
    ),
    "no label": ("```\nprint(1)\n```", "print(1)", Extraction.fence),
    "py, upper case": ("```Py\nprint(1)\n```", "print(1)", Extraction.python_fence),
    "attributes": ("```{.python .numberLines}\nprint(1)\n```", "print(1)", Extraction.python_fence),
    "tildes": ("~~~python\nprint(1)\n~~~", "print(1)", Extraction.python_fence),
    "cut": ("So:\n```python\nprint(1)\nprint(", "print(1)\nprint(", Extraction.open_fence),
    "cut after an example": ("Input\n```\n1 2\n```\n```python\nprint(1)", "print(1)", Extraction.open_fence),
    "cut, no label": ("```\nprint(1)", "print(1)", Extraction.open_fence),
    "windows": ("```python\r\nprint(1)\r\n```\r\n", "print(1)", Extraction.python_fence),
    "longer fence holds a shorter one": (
        "````python\ns = '''\n```\n'''\n````", "s = '''\n```\n'''", Extraction.python_fence,
    ),
    "an empty fence does not count": ("```python\nprint(1)\n```\n```python\n```", "print(1)", Extraction.python_fence),
    "bare": ("n = int(input())\nprint(n)\n", "n = int(input())\nprint(n)\n", Extraction.bare),
    "bare function": ("def f(x):\n    return x\n", "def f(x):\n    return x\n", Extraction.bare),
    "words": ("I cannot solve this, for it is hard.", "", Extraction.none),
    "empty": ("", "", Extraction.none),
    "another language": ("```cpp\nint main() {}\n```", "", Extraction.none),
    "after thinking": (
        "<think>```python\nprint(0)\n```</think>\n```python\nprint(1)\n```", "print(1)", Extraction.python_fence,
    ),
    "only in thinking": ("<think>```python\nprint(0)\n```", "", Extraction.none),
    "a template that opened it": ("hm ```python\nprint(0)\n```</think>print(1)", "print(1)", Extraction.bare),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_cases(name: str) -> None:
    answer, code, rule = CASES[name]
    assert extract(answer) == ExtractedCode(code, rule)


@given(st.text(st.characters(codec="utf-8", exclude_characters="\r")), st.text(max_size=40))
@examples(300)
def test_what_training_puts_into_a_fence_comes_out_of_it(code: str, before: str) -> None:
    """References that are written as answers, as `prep` writes them, are judged as what they are."""
    code = code.rstrip()
    before = before.replace("`", "").replace("~", "").replace("<", "")
    found = extract(f"{before}\n{fenced(code)}")
    if not code.strip() or "<think>" in code or "</think>" in code:
        return
    assert found == ExtractedCode(code, Extraction.python_fence)


@given(st.text(max_size=300))
@examples(300)
def test_any_text_gives_an_answer(text: str) -> None:
    found = extract(text)
    assert (found.code == "") == (found.rule is Extraction.none)


@pytest.mark.parametrize("answer", ["a,\n" * 100_000, "~" * 300_000 + "`", "~~~" + " " * 300_000 + "`"], ids=range(3))
def test_hostile_answers_take_linear_time(answer: str) -> None:
    started = time.process_time()
    assert extract(answer).rule in (Extraction.none, Extraction.open_fence)
    assert time.process_time() - started < 20  # hours, where a pattern goes back over what it has seen
