"""What rows of every format become, by eye: `rows.yaml` has them beside their examples."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from packtrain.pipeline.inputs.read import columns_of
from packtrain.pipeline.inputs.tables import to_rows
from packtrain.schemas.rows import Example
from packtrain.stages.prep import Options, make_format
from packtrain.stages.prep.sharegpt import ROLES

from tests.kit import Row

TABLE = yaml.safe_load(Path(__file__).with_name("rows.yaml").read_text())


def examples(name: str, options: Options, row: Row) -> list[Example]:
    """Of the row as a line of JSON."""
    found = make_format(name, options).prepare([(5, json.dumps(row).encode())])
    assert found.rejects == []
    return list(found.examples)


def public(example: Example) -> Row:
    """An example in the columns that show all of it."""
    return make_format("python").public_row(example)


def reasons(name: str, options: Options, row: Row) -> list[str]:
    """Why a row is rejected."""
    return [reason for _, reason, _ in make_format(name, options).prepare([(0, row)]).rejects]


@pytest.mark.parametrize(("name", "options", "row", "wanted"), TABLE["rows"])
def test_rows(name: str, options: Row, row: Row, wanted: list[Row]) -> None:
    found = examples(name, Options(**options), row)
    assert [public(one) for one in found] == wanted
    assert [(one.line, one.sub) for one in found] == [(5, sub) for sub in (range(len(found)) if found[1:] else [-1])]
    assert len({one.group for one in found}) == 1


@pytest.mark.parametrize(("name", "row", "wanted"), TABLE["arrow"])
def test_the_nulls_of_arrow_are_dropped(name: str, row: Row, wanted: Row) -> None:
    form = make_format(name)
    rows = to_rows(pa.Table.from_pylist([row]), columns_of(form)).records or []
    (made,) = form.prepare(rows).examples
    assert public(made) == wanted


@pytest.mark.parametrize(("name", "role"), [*ROLES.items(), (" Human ", "user"), ("GPT", "assistant")])
def test_every_name_of_a_role(name: str, role: str) -> None:
    turns = [{"from": name, "value": '{"name": "f", "arguments": {}}'}, {"from": "human", "value": "Hi"}]
    (made,) = examples("sharegpt", Options(), {"conversations": turns})
    assert isinstance(made.prompt, list)
    assert made.prompt[0]["role"] == role


@pytest.mark.parametrize("row", [{"prompt": ""}, {"prompt": []}])
def test_an_empty_prompt_alone_is_refused(row: Row) -> None:
    assert reasons("prompt_completion", Options(prompt_only=True), row) == ["empty"]


@pytest.mark.parametrize(
    ("name", "row"),
    [
        *((name, row) for name, options, row, wanted in TABLE["rows"] if not options and wanted == [row]),
        ("messages", {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}),
        ("messages", {"messages": [{"role": "user", "content": "Hi"}], "tools": [{"name": "f"}]}),
        ("tokenized", {"input_ids": [3, 4], "labels": [-100, 4]}),
    ],
)
def test_what_other_tools_read_is_read_back(name: str, row: Row) -> None:
    (made,) = examples(name, Options(), row)
    assert make_format(name).public_row(made) == row
