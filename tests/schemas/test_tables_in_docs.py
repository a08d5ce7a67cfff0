"""Tables in the documentation are those of `schemas/tables`. PACKTRAIN_REWRITE_DOCS=1 rewrites them."""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest
from packtrain.schemas.tables.columns import PACKED_COLUMNS, PAIR_COLUMNS, Condition, RowColumn
from packtrain.schemas.tables.export_formats import EXPORT_FORMATS
from packtrain.schemas.tables.masks import POLICIES

DOCS = Path(__file__).parents[2] / "docs"


def columns(row_columns: Iterable[RowColumn] = PACKED_COLUMNS) -> Iterator[str]:
    yield "| column | type | one value for each | when | meaning |"
    yield "|---|---|---|---|---|"
    for column in row_columns:
        when = "always" if column.condition in (None, Condition.PAIRS) else str(column.condition)
        yield f"| `{column.name}` | {column.value} | {column.per} | {when} | {column.sentence} |"


def policies() -> Iterator[str]:
    yield "| policy | trains | for |"
    yield "|---|---|---|"
    for policy in POLICIES.values():
        yield f"| `{policy.name}` | {policy.sentence} | {policy.suits} |"


def formats() -> Iterator[str]:
    yield "| `--to` | read by | what is written, for each split |"
    yield "|---|---|---|"
    for export_format in EXPORT_FORMATS.values():
        yield f"| `{export_format.name}` | {export_format.reader} | {export_format.files} |"
    hub = "[`hf://OWNER/NAME`](#the-hugging-face-hub)"
    yield f"| {hub} | the Hub | the dataset's own shards, and its card |"


TABLES: dict[tuple[str, str], Callable[[], Iterator[str]]] = {
    ("commands.md", "columns"): columns,
    ("data.md", "columns of pairs"): partial(columns, PAIR_COLUMNS),
    ("masks.md", "policies"): policies,
    ("export.md", "formats"): formats,
}


@pytest.mark.parametrize(("page", "name"), TABLES)
def test_a_page_has_the_table_of_the_code(page: str, name: str) -> None:
    path = DOCS / page
    text = path.read_text(encoding="utf-8")
    expected = "\n".join(TABLES[page, name]())
    block = re.compile(rf"(?<=<!-- table: {name} -->\n)(.*?)(?=\n<!-- end of table -->)", re.DOTALL)
    match = block.search(text)
    assert match is not None, f"docs/{page} has no table of {name}"
    if os.environ.get("PACKTRAIN_REWRITE_DOCS"):
        path.write_text(text[: match.start()] + expected + text[match.end() :], encoding="utf-8")
        return
    assert match[0] == expected, "run with PACKTRAIN_REWRITE_DOCS=1 to rewrite the table"
