"""A condition says of each example what a loop over them says; a wrong one is refused before there is a row."""

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packtrain.schemas.errors import ConfigError
from packtrain.schemas.rows import Example, Messages
from packtrain.stages.prep import Prepared
from packtrain.stages.where import COLUMNS, Where


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
        ("ARRAY_LENGTH(messages) > 3", [3]),
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
        ("answer = 'x'", f"no column 'answer'; there are {', '.join(COLUMNS)}"),
        ("LENGTH(completion)", "gives UInt32 and not true or false"),
        ("completion + 1", "cannot be used"),
        ("1 = 1", "looks at no column"),
        ("AVG(LENGTH(text)) > 3", "makes one value of all rows"),
        ("LENGTH(text) > AVG(LENGTH(text))", "depends on the rows beside it"),
        ("ROW_NUMBER() OVER (ORDER BY text) < 3", "depends on the rows beside it"),
        ("LENGTH(text) > MIN(LENGTH(text)) OVER (PARTITION BY prompt)", "depends on the rows beside it"),
        ("text, prompt", "cannot be used"),
        ("text = 'a'; DROP TABLE x", "cannot be used"),
        ("text IN (SELECT text FROM x)", "cannot be used"),
        ("read_csv('/etc/passwd') = text", "cannot be used"),
    ],
)
def test_wrong_conditions(condition: str, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        Where(condition, "sources.s.where")
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
    before = Prepared(examples, [(3, "empty", "")], Counter(), Counter(duplicate=1), 4, 0, 9, 1, 0)
    after = Where("text = 'yes'").wanted(before)
    assert after.examples == [examples[1]]
    assert (after.filtered, after.skipped) == (Counter(where=2), Counter(duplicate=1, where=1))
    assert after.rows == len(after.rejects) + after.filtered.total() + len({one.line for one in after.examples})
    assert (before.filtered, before.skipped) == (Counter(), Counter(duplicate=1))
    assert Where("text <> ''").wanted(before) is before


@given(st.lists(st.text(max_size=6), max_size=8), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_as_a_loop_does_it(texts: list[str], least: int) -> None:
    found = Where(f"LENGTH(text) >= {least} AND text NOT LIKE 'a%'")([example(text=text) for text in texts])
    assert found == [len(text) >= least and not text.startswith("a") for text in texts]


def test_polars_is_imported_only_where_it_is_used() -> None:
    code = "import sys, packtrain.stages.where, packtrain.pipeline.worker; assert 'polars' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
