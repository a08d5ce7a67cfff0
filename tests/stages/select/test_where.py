"""A condition says of each example what a loop over them says; a wrong one is refused before there is a row."""

import subprocess
import sys
from collections import Counter

import pytest
from packtrain.pipeline.execute.server import SERVER_MODULES
from packtrain.schemas.errors import ConfigError
from packtrain.schemas.rows import Example, Messages
from packtrain.stages.prep import PreparedBlock, RejectedRow
from packtrain.stages.select.where import Where


def chat(*messages: tuple[str, str | None]) -> Messages:
    return [{"role": role, "content": content} for role, content in messages]


def example(line: int = 0, **fields: object) -> Example:
    return Example(line, -1, **{"group": "", "prompt": None, "completion": None, "text": None, **fields})  # type: ignore[arg-type]


EXAMPLES = [
    example(text="a short text"),
    example(prompt="Why?", completion="Because."),
    example(prompt=chat(("system", "Be brief."), ("user", "Why?")), completion=chat(("assistant", "No."))),
    example(
        prompt=chat(("user", "Look it up."), ("assistant", None), ("tool", "42")),
        completion=chat(("assistant", "It is 42.")),
        tools=[{"type": "function", "function": {"name": "look"}}],
        group="g",
    ),
    example(prompt="Which?", completion="left", rejected="right"),
]


@pytest.mark.parametrize(
    ("condition", "taken"),
    [
        ("text IS NOT NULL", [0]),
        ("LENGTH(completion) > 5", [1, 3]),
        ("prompt LIKE '%Why%'", [1, 2]),
        ("prompt = 'Be brief.\nWhy?'", [2]),
        ("ARRAY_LENGTH(roles) > 3", [3]),
        ("ARRAY_CONTAINS(roles, 'system')", [2]),
        ("tools LIKE '%look%' AND \"group\" = 'g'", [3]),
        ("rejected = 'right'", [4]),
        ("completion IS NULL OR completion NOT LIKE '%.'", [0, 4]),
        ("REGEXP_LIKE(prompt, '^W')", [1, 4]),
    ],
)
def test_conditions(condition: str, taken: list[int]) -> None:
    where = Where(condition)
    where.check(EXAMPLES)
    assert [index for index, flag in enumerate(where(EXAMPLES)) if flag] == taken
    assert where([]) == []


@pytest.mark.parametrize(
    ("condition", "says"),
    [
        ("LENGTH(completion) >", "cannot be used"),
        ("lenght(completion) > 3", "lenght"),
        ("completion + 1", "cannot be used"),
        ("1 = 1", "uses no column"),
        ("AVG(LENGTH(text)) > 3", "it computes one value from all rows"),
        ("LENGTH(text) > AVG(LENGTH(text))", "its result for a row depends on other rows"),
        ("LENGTH(text) > MIN(LENGTH(text)) OVER (PARTITION BY prompt)", "its result for a row depends on other rows"),
        ("text, prompt", "cannot be used"),
        ("REGEXP_LIKE(text, '(a')", "cannot be used"),
    ],
)
def test_wrong_conditions(condition: str, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        Where(condition, "sources.s.where").check([example(n, prompt="p", text="x" * n) for n in range(4)])
    assert str(error.value).startswith("sources.s.where: the condition")
    assert says in str(error.value)


def test_a_value_that_cannot_be_computed() -> None:
    where = Where("CAST(text AS INTEGER) > 3")
    assert where([example(text="4"), example(text="2")]) == [True, False]
    with pytest.raises(ConfigError, match="conversion from `str` to `i32` failed"):
        where([example(text="four")])


def test_rows_and_examples_are_counted() -> None:
    """A row that loses all its examples is filtered; one that keeps some has skipped the others."""
    examples = [example(line, text=text) for line, text in [(0, "no"), (1, "yes"), (1, "no"), (2, "no"), (2, "no")]]
    before = PreparedBlock(examples, [RejectedRow(3, "empty", "")], Counter(), Counter(duplicate=1), 4, 0)
    after = Where("text = 'yes'").filtered(before)
    assert after.examples == [examples[1]]
    assert (after.filtered, after.skipped) == (Counter(where=2), Counter(duplicate=1, where=1))
    assert after.rows == len(after.rejects) + after.filtered.total() + len({one.line for one in after.examples})
    assert (before.filtered, before.skipped) == (Counter(), Counter(duplicate=1))
    assert Where("text <> ''").filtered(before) is before


def test_workers_import_no_large_package_that_they_do_not_need() -> None:
    modules = ", ".join(["packtrain.stages.select.where", *SERVER_MODULES])
    code = f"import sys, {modules}; assert not {{'polars', 'pydantic', 'torch', 'transformers'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
