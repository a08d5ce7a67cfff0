"""Every reason that the program can give has words."""

import ast
from pathlib import Path

from packtrain.pipeline.report.ledger_lines import ledger_words
from packtrain.schemas.dataset.ledger import SourceLedger
from packtrain.schemas.tables.reasons import DECISIONS, REASONS

from tests.support.sources import trees


def given_reasons() -> set[str]:
    """What stands where a reason is given: the words of errors, of selections and of counters."""
    searched = {
        path: tree
        for path, tree in trees().items()
        if path.parts[0] in ("schemas", "stages", "pipeline") and "report" not in path.parts
    }
    known, by_name = dict[tuple[Path, str], str](), dict[str, str]()
    for path, tree in searched.items():
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                for target in node.targets:
                    if isinstance(target, ast.Name) and isinstance(node.value.value, str):
                        known[path, target.id] = by_name[target.id] = node.value.value
    out = set[str]()
    for path, tree in searched.items():
        for call in ast.walk(tree):
            if not isinstance(call, ast.Call):
                continue
            name = getattr(call.func, "id", getattr(call.func, "attr", ""))
            at = {"RowRejectedError": 0, "RowFilteredError": 0, "_leave_out": 2}.get(name)
            if at is None or len(call.args) <= at:
                continue
            word = call.args[at]
            if isinstance(word, ast.Constant):
                out.add(str(word.value))
            elif isinstance(word, ast.Name) and word.id.isupper():
                out.add(known.get((path, word.id), by_name.get(word.id, word.id)))
    return out


def test_the_documentation_explains_every_line_of_the_ledger() -> None:
    page = (Path(__file__).parents[3] / "docs/report.md").read_text()
    table = page.partition("### The lines")[2].partition("\n## ")[0]
    explained = " ".join(line.split("|")[1] for line in table.splitlines() if line.startswith("|"))
    fields = SourceLedger.__dataclass_fields__
    words = [ledger_words(f"all.{field}").removeprefix("all: ").rpartition(", ")[2] for field in fields]
    undocumented = [word for word in words if word.partition(" ")[2] not in explained and word not in explained]
    assert undocumented == []
    assert len(words) > 30, "the fields have gone"


def test_every_reason_has_words() -> None:
    found = given_reasons()
    assert len(found) > 25, "the search has lost its way"
    assert "too_deep" in found, "a constant"
    assert sorted(found - set(REASONS)) == []
    counters = {"end_of_sequence", "special", "overlap", "repeats"}
    by_hand = {"alignment", "unproved", "untrained_piece", "not_taken", "where", "over_limit", "not_trained"}
    of_tables = {"row_too_long", "bad_quotes", "wrong_columns", "unreadable_value", "invalid_utf8"}
    of_limits = {"max_length"}
    assert {*DECISIONS, *counters, *by_hand, *of_tables, *of_limits} <= set(REASONS)
    assert all(text.endswith(".") and len(text) < 160 for text in REASONS.values())
