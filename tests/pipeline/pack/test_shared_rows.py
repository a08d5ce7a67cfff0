"""Rows whose documents share tokens: every document of `share: none` comes back, each label once; ledgers close."""

import re
from pathlib import Path
from typing import Any

import packtrain
import pyarrow as pa
import pytest
from packtrain.pipeline.dataset.open_dataset import open_dataset
from packtrain.pipeline.dataset.row_checks import row_problems
from packtrain.schemas.units import plural

from tests import kit
from tests.support.shared_documents import documents_of


def both(folder: Path, *sources: Any, **keys: Any) -> tuple[kit.Packed, kit.Packed]:
    """The same run with `share: none` and `share: row`."""
    config = kit.configure(folder, *sources, **keys)
    plain = kit.packed(kit.merged(config, {"out": str(folder / "plain")}))
    shared = kit.packed(kit.merged(config, {"out": str(folder / "shared"), "pack": {"share": "row"}}))
    return plain, shared


TURNS = kit.source("chats", expand="per_turn")
CASES: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "turns": ([TURNS], {}),
    "turns, longer rows": ([TURNS], {"pack": {"row_length": 1024}}),
    "solutions": (["apps"], {}),
    "several sources": ([TURNS, "apps", "texts"], {}),
    "cut at the start": ([TURNS], {"truncate": {"max_length": 90}, "pack": {"row_length": 512}}),
    "cut at the end": ([TURNS], {"truncate": {"max_length": 90, "keep": "end"}}),
    "split": ([TURNS, "texts"], {"truncate": {"max_length": 90, "overlong": "split"}}),
    "tight": ([TURNS], {"pack": {"strategy": "tight"}}),
    "aligned": ([TURNS], {"pack": {"align": 8}}),
    "held out": ([TURNS, "apps"], {"holdout": {"fraction": 0.3}}),
    "repeated": ([{**TURNS, "repeat": 2}, "texts"], {}),
    "weighted": ([{**TURNS, "weight": 3}, {**kit.source("texts"), "weight": 1}], {}),
    "weights by document": ([TURNS], {"loss": {"normalize": "document"}}),
    "without shuffling": ([TURNS], {"pack": {"shuffle": False}}),
    "several windows": ([TURNS, "apps"], {"pack": {"window_tokens": 4000}}),
    "masked: all": ([TURNS], {"mask": "all"}),
}


@pytest.mark.parametrize("case", CASES)
def test_every_document_comes_back(case: str, tmp_path: Path) -> None:
    sources, keys = CASES[case]
    plain, shared = both(tmp_path, *sources, **keys)
    assert plain.splits == shared.splits
    for split in plain.splits:
        expected = documents_of(plain, split)
        found = documents_of(shared, split)
        if case == "weighted":  # groups are drawn whole, so other documents may have the further copies
            assert found.keys() == expected.keys()
        elif keys.get("pack", {}).get("align"):
            assert {document.doc_id for document in found} == {document.doc_id for document in expected}
        else:
            assert found == expected
    for name, entry in shared.ledger.items():
        theirs = plain.ledger[name]
        for key in ("examples_made", "tokens_encoded", "labels_trained", "examples_packed"):
            if case != "weighted":
                assert entry.get(key) == theirs.get(key), key
    stored = sum(entry["tokens_packed"] for entry in shared.ledger.values())
    whole = sum(entry["tokens_packed"] for entry in plain.ledger.values())
    if case == "masked: all":
        assert stored == whole
        assert any("pack.share row stores nothing once" in note and "mask all" in note for note in shared.notes)
    elif "end" not in case and case != "split":
        assert stored < whole


# What stands around the rows


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> kit.Packed:
    """Turns of chats, and solutions of problems, that share tokens."""
    folder = tmp_path_factory.mktemp("shared")
    config = kit.configure(folder, TURNS, "apps", pack={"share": "row", "row_length": 512})
    return kit.packed(config)


def test_a_dataset_verifies_and_says_what_continues_what(shared: kit.Packed) -> None:
    assert kit.cli("verify", shared.folder, "--deep").code == 0
    every = [packtrain.inspect(shared.folder, row) for row in range(len(shared.rows()))]
    documents = {document.id: document for row in every for document in row.documents}
    branches = [document for document in documents.values() if document.continues]
    assert len(branches) > 20
    for branch in branches:
        assert branch.continues.rpartition("#")[0] == branch.id.rpartition("#")[0]
        assert branch.origin == f"continues {branch.continues} after {plural(branch.shared, 'token')}"
    text = kit.cli("inspect", shared.folder, "--row", 0).out
    assert "continues" in text


def test_plans_and_runs_say_what_sharing_saves(tmp_path: Path) -> None:
    """Also that rows are too short for the documents of a source row, and which length is enough."""
    config = kit.configure(tmp_path, TURNS, truncate={"max_length": 256}, run={"report": True})
    advice = r"pack.share=row would store (\d+\.\d) times fewer tokens"
    planned = kit.cli("plan", kit.saved(config)).out
    ended = kit.cli("run", kit.saved(config)).out
    for text in (planned, ended):
        found = re.search(advice, " ".join(text.split()))
        assert found is not None, text
        assert float(found[1]) >= 1.1
    narrow = kit.merged(config, {"truncate": {"max_length": 200}, "out": str(tmp_path / "narrow")})
    assert "pack.row_length=400" in " ".join(kit.cli("plan", kit.saved(narrow)).out.split())
    shared = kit.merged(config, {"pack": {"share": "row"}, "out": str(tmp_path / "shares")})
    ended = " ".join(kit.cli("run", kit.saved(shared)).out.split())
    assert "pack.share=row stores" in ended
    assert "pack.strategy=tight" not in ended  # which would be compared by documents that share nothing
    assert "with share=row" in kit.cli("plan", kit.saved(shared)).out
    alone = kit.configure(tmp_path, "texts", out=str(tmp_path / "alone"))
    assert "pack.share" not in kit.cli("plan", kit.saved(alone)).out


def test_other_trainers_formats_refuse_it(shared: kit.Packed, tmp_path: Path) -> None:
    done = kit.cli("export", shared.folder, "--out", tmp_path / "out", "--to", "megatron-bridge")
    assert done.code == 2
    assert "pack.share: none" in done.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("branch_parents", 50, "stands before its row"),
        ("branch_parents", 0, "exactly if it continues another"),
        ("branch_position_ids", 10_000, "more tokens than its parent's path has"),
        ("branch_position_ids", 1, "does not hold the last token"),
    ],
)
def test_verify_finds_a_branch_that_is_not_one(shared: kit.Packed, column: str, value: int, words: str) -> None:
    dataset = open_dataset(shared.folder)
    shard = dataset.manifest.splits["train"].shards[0]
    found = set()
    for batch in dataset.batches(shard):
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        for row in range(batch.num_rows):
            for piece, parent in enumerate(columns["parents"][row]):
                if not parent:
                    continue
                changed = {name: [list(values) for values in rows] for name, rows in columns.items()}
                if column == "branch_parents":
                    changed["parents"][row][piece] = value
                else:
                    begin = sum(columns["seq_lengths"][row][:piece])
                    length = columns["seq_lengths"][row][piece]
                    changed["position_ids"][row][begin : begin + length] = range(value, value + length)
                arrays = [pa.array(changed[field.name], field.type) for field in batch.schema]
                wrong = pa.RecordBatch.from_arrays(arrays, schema=batch.schema)
                found |= {what for at, what in row_problems(wrong, dataset.manifest) if at == row}
    assert any(words in what for what in found), found
