"""Alpaca's rows, by eye."""

import json
from typing import Any

from packtrain.schemas.rows import Example
from packtrain.stages.prep import Options
from packtrain.stages.prep.alpaca import AlpacaFormat

PLAIN = Options(style="plain")


def example(row: Any, options: Options | None = None) -> Example:
    made = AlpacaFormat(options)
    (only,) = made.examples(made.decode(json.dumps(row).encode()), 1)
    return only


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def test_as_a_conversation() -> None:
    made = example({"instruction": "Add.", "input": "1 2", "output": "3", "text": "whatever"})
    assert made == Example(1, -1, "", [user("Add.\n1 2")], [assistant("3")], None)
    for none in ("", None):
        assert example({"instruction": "Add.", "input": none, "output": "3"}).prompt == [user("Add.")]
    assert example({"instruction": "", "input": "1 2", "output": "3"}).prompt == [user("1 2")]


def test_history_and_system_come_first() -> None:
    row = {"instruction": "C", "output": "c", "system": "S", "history": [["A", "a"], ["B", "b"]]}
    prompt = [
        {"role": "system", "content": "S"},
        user("A"), assistant("a"), user("B"), assistant("b"), user("C"),
    ]  # fmt: skip
    assert example(row)[3:5] == (prompt, [assistant("c")])
    nothing: list[Any] = [[], None]
    for none in nothing:
        assert example(row | {"history": none, "system": none or ""}).prompt == [user("C")]


def test_one_example_each_turn() -> None:
    made = AlpacaFormat(Options(per_turn=True))
    row = {"instruction": "B", "output": "b", "history": [["A", "a"]]}
    first, second = made.examples(made.decode(json.dumps(row).encode()), 0)
    assert (first.sub, first.prompt, first.completion) == (0, [user("A")], [assistant("a")])
    assert (second.sub, second.prompt) == (1, [user("A"), assistant("a"), user("B")])
    assert first.group == second.group != ""


def test_as_the_text_of_stanford() -> None:
    made = example({"instruction": "Add {input}.", "input": "{x}", "output": "3"}, PLAIN)
    assert made.prompt == (
        "Below is an instruction that describes a task, paired with an input that provides further context. Write a "
        "response that appropriately completes the request.\n\n### Instruction:\nAdd {input}.\n\n### Input:\n{x}\n\n"
        "### Response:\n"
    )
    assert made.completion == "3"
    assert example({"instruction": "Add.", "output": "3"}, PLAIN).prompt == (
        "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
        "### Instruction:\nAdd.\n\n### Response:\n"
    )


def test_other_keys() -> None:
    options = Options(keys={"input": "context", "output": "response"})
    made = example({"instruction": "A", "context": "B", "response": "C", "input": 1, "output": 2}, options)
    assert made[3:5] == ([user("A\nB")], [assistant("C")])
