"""A condition says of each example what a loop over them says; a wrong one is refused before there is a row."""

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import polars
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.pipeline.execute.fork_server import TASK_MODULES
from packtrain.schemas.errors import ConfigError
from packtrain.schemas.rows import Example, Messages
from packtrain.stages.prep import PreparedBlock
from packtrain.stages.select.condition import FUNCTIONS
from packtrain.stages.select.where import COLUMNS, Where

from tests.support.examples import examples


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
        ("answer = 'x'", f"no column 'answer'; the columns are {', '.join(COLUMNS)}"),
        ("LENGTH(completion)", "gives UInt32 instead of true or false"),
        ("completion + 1", "cannot be used"),
        ("1 = 1", "uses no column"),
        ("AVG(LENGTH(text)) > 3", "the function AVG is not allowed; allowed are ABS, "),
        ("LENGTH(text) > AVG(LENGTH(text))", "the function AVG is not allowed"),
        ("ROW_NUMBER() OVER (ORDER BY text) < 3", "the function ROW_NUMBER is not allowed"),
        ("LENGTH(text) > MIN(LENGTH(text)) OVER (PARTITION BY prompt)", "the function MIN is not allowed"),
        ("text, prompt", "cannot be used"),
        ("text = 'a'; DROP TABLE x", "it cannot contain ';' outside of quotes"),
        ("text IN (SELECT text FROM x)", "no column 'SELECT'"),
        ("text IN (FROM text)", "cannot use FROM; it sees only the example's columns"),
        ("read_csv('/etc/passwd') = text", "the function read_csv is not allowed"),
        ("text = 'a", "the quote at character 8 is not closed"),
        ("text = 'a' -- and so on", "cannot contain comments"),
        ("text = $$a$$", "cannot contain '$' outside of quotes"),
        ("text = X'61'", "no column 'X'"),
        ("messages[1].name = 'a'", "no field 'name'; its fields are content, role"),
        ("text = 'a')", "closes a bracket that is not open"),
        ("LENGTH(LPAD(text, 2000000000)) > 3", "the function LPAD is not allowed"),
        ("REPLACE(text, 'a', 'bb') = text", "REPLACE cannot make a text longer"),
        ("REPLACE(text, '', 'b') = text", "REPLACE cannot make a text longer"),
        ("REPLACE(text, 'a', prompt) = text", "REPLACE takes two texts in quotes"),
        ("REGEXP_LIKE(text, prompt)", "pattern of REGEXP_LIKE must be one text in quotes"),
        ("text ~ ('a' || prompt)", "pattern of ~ must be one text in quotes"),
        ("text RLIKE 'a' || prompt", "pattern of RLIKE must be one text in quotes"),
        (
            "REGEXP_LIKE(text, '((a{100}){100}){100}')",
            "has 1,010,100 characters with its repetitions written out; at most 5,000",
        ),
        ("REGEXP_LIKE(text, '(a')", "cannot be used"),
        (" || ".join(["text"] * 10) + " = 'a'", "joins 9 texts; at most 8"),
        (f"text = '{'a' * 1001}'", "has more than 1,000 characters"),
    ],
)
def test_wrong_conditions(condition: str, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        Where(condition, "sources.s.where")
    assert str(error.value).startswith("sources.s.where: the condition")
    assert says in str(error.value)


@pytest.mark.parametrize(
    "condition",
    [
        " OR ".join(["text = 'a'"] * 20_000),
        " OR ".join(["text = 'a'"] * 1_000),
        "NOT " * 300 + "text = 'a'",
        "(" * 40 + "text = 'a'" + ")" * 40,
        "CASE WHEN true THEN " * 40 + "text = 'a'" + " END" * 40,
    ],
)
def test_a_condition_of_a_size_that_polars_cannot_bear(condition: str) -> None:
    with pytest.raises(ConfigError, match=r"at most|levels deep") as error:
        Where(condition)
    assert len(str(error.value)) < 1_000


def nested(form: str, times: int, inner: str = "text") -> str:
    """A form around itself so many times."""
    for _ in range(times):
        inner = form.format(inner)
    return inner


@pytest.mark.parametrize(
    "condition",
    [
        nested("({} BETWEEN FALSE AND TRUE)", 30, "text = 'a'"),
        "text = 'a'" + " BETWEEN FALSE AND TRUE" * 60,
        nested("NULLIF({}, 'a')", 30) + " = 'b'",
        nested("SPLIT_PART({}, 'a', 1)", 30) + " = 'b'",
        nested("RIGHT({}, 3)", 30) + " = 'b'",
        nested("LENGTH(LEFT(text, {}))", 15, "2") + " = 1",
        nested("CASE {} WHEN 'a' THEN 'b' WHEN 'c' THEN 'd' ELSE 'e' END", 20) + " = 'b'",
    ],
)
def test_operands_that_polars_would_repeat_a_billion_times(condition: str) -> None:
    with pytest.raises(ConfigError, match="1,024"):
        Where(condition)


def test_many_ranges_beside_one_another_pass() -> None:
    Where(" OR ".join(f"LENGTH(text) BETWEEN {low} AND {low + 2}" for low in range(40)))
    Where(" AND ".join(f"LENGTH(text) NOT BETWEEN {low} AND {low + 2}" for low in range(40)))


def test_no_file_is_read(tmp_path: Path) -> None:
    """polars opens the file while it parses; what it says of it must not reach the message."""
    secret = tmp_path / "secret.csv"
    secret.write_text("column_of_a_secret\n1\n")
    for table in (f"read_csv('{secret}')", f"'{secret}'", f'"{secret}"'):
        for query in (
            f"SELECT * FROM {table}",
            f"FROM {table}",
            f"TABLE {table}",
            f"WITH x AS (SELECT 1) TABLE {table}",
        ):
            for condition in (f"text IN ({query})", f"EXISTS ({query})", f"text = ({query})", query):
                with pytest.raises(ConfigError, match=r"no column|cannot use FROM|is not allowed") as error:
                    Where(condition)
                assert "column_of_a_secret" not in str(error.value)


@pytest.mark.parametrize(
    ("condition", "taken"),
    [
        ("LENGTH(text) - LENGTH(REPLACE(text, ' ', '')) = 2", [0]),
        ("ARRAY_LENGTH(STRING_TO_ARRAY(text, ' ')) = 3 AND SPLIT_PART(text, ' ', 1) = 'a'", [0]),
        ("CASE WHEN prompt IS NULL THEN FALSE ELSE LOWER(prompt) ILIKE 'W%' END", [1, 4]),
        ("COALESCE(text, prompt) IN ('Why?', 'it''s', 'a -- /* short */')", [1]),
        ("TRIM(BOTH 'W' FROM prompt) = 'hy?' OR SUBSTRING(prompt FROM 1 FOR 3) = 'Whi'", [1, 4]),
        ("completion ~ '^[A-Z][a-z]{1,20}\\.$' AND NOT (completion RLIKE 'No')", [1]),
        ("ROUND(CAST(LENGTH(prompt) AS DOUBLE) / LENGTH(completion)) = 2", [3, 4]),
        ("CONCAT(prompt, '/', completion) = 'Which?/left' AND rejected IS DISTINCT FROM 'left'", [4]),
        ("IF(\"group\" = 'g', true, false) AND POSITION('42' IN completion) > 0", [3]),
        ("MOD(ABS(-LENGTH(text)), 2) = 0 AND GREATEST(LENGTH(text), 3) BETWEEN 4 AND 99", [0]),
    ],
)
def test_what_conditions_can_still_say(condition: str, taken: list[int]) -> None:
    assert [index for index, flag in enumerate(Where(condition)(EXAMPLES)) if flag] == taken


def test_every_function_that_is_allowed_is_one_of_polars() -> None:
    for function in sorted(FUNCTIONS - {"CAST", "TRY_CAST", "POSITION"}):  # those have a syntax of their own
        said = ""
        try:
            polars.sql_expr(f"{function}(text)")
        except polars.exceptions.PolarsError as error:
            said = str(error)
        assert "nsupported function" not in said


def test_a_pattern_at_the_limit_is_quick() -> None:
    slow = Where(r"REGEXP_LIKE(text, '(x[xy]{20}x{1,20}){80}(.*a.*b){200}$')")
    began = time.process_time()
    assert slow([example(text="xxxxxy" * 50_000)]) == [False]
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    "pattern",
    [r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}", r"[A-Z]{2,20}.{10,500}$", r"\p{L}{3}[{}]{2}\{9999}", r"(?i)(ab|c{3}){90}"],
)
def test_usual_patterns_pass(pattern: str) -> None:
    Where(f"text ~ '{pattern}'")


def test_many_values_are_one_operation() -> None:
    values = ", ".join(f"'value {number}'" for number in range(4_000))
    assert Where(f"text IN ({values})")([example(text="value 3999"), example(text="value 4000")]) == [True, False]


def test_a_value_that_cannot_be_computed() -> None:
    where = Where("CAST(text AS INTEGER) > 3")
    assert where([example(text="4"), example(text="2")]) == [True, False]
    with pytest.raises(ConfigError, match="i32"):
        where([example(text="four")])


def test_rows_and_examples_are_counted() -> None:
    """A row that loses all its examples is filtered; one that keeps some has skipped the others."""
    examples = [example(line, text=text) for line, text in [(0, "no"), (1, "yes"), (1, "no"), (2, "no"), (2, "no")]]
    before = PreparedBlock(examples, [(3, "empty", "")], Counter(), Counter(duplicate=1), 4, 0)
    after = Where("text = 'yes'").wanted(before)
    assert after.examples == [examples[1]]
    assert (after.filtered, after.skipped) == (Counter(where=2), Counter(duplicate=1, where=1))
    assert after.rows == len(after.rejects) + after.filtered.total() + len({one.line for one in after.examples})
    assert (before.filtered, before.skipped) == (Counter(), Counter(duplicate=1))
    assert Where("text <> ''").wanted(before) is before


@given(st.lists(st.text(max_size=6), max_size=8), st.integers(0, 5))
@examples(60)
def test_as_a_loop_does_it(texts: list[str], least: int) -> None:
    found = Where(f"LENGTH(text) >= {least} AND text NOT LIKE 'a%'")([example(text=text) for text in texts])
    assert found == [len(text) >= least and not text.startswith("a") for text in texts]


def test_workers_import_no_large_package_that_they_do_not_need() -> None:
    modules = ", ".join(["packtrain.stages.select.where", *TASK_MODULES])
    code = f"import sys, {modules}; assert not {{'polars', 'pydantic', 'torch', 'transformers'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
