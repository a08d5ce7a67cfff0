"""Documents of one group that share tokens, wherever they stand: rollouts of a prompt, one a line, in many blocks."""

import random
from collections import Counter, defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from packtrain.pipeline.inputs import scan
from packtrain.pipeline.pack import units
from packtrain.pipeline.run.plan import plan
from packtrain.pipeline.stream.live_windows import LiveWindows

from tests import kit
from tests.support.shared_documents import Whole, documents_of

READER = """
def rollout(row):
    return {"prompt": row["question"], "completion": row["answer"], "group": row["id"]}
"""
KEYS = {"prompt": "question", "completion": "answer", "group": "id"}
GROUPS = 12


def rollouts(count: int = 150, seed: int = 5) -> list[kit.Row]:
    """Answers to a few questions, in a random order; every 10th has no group, and some questions begin alike."""
    chance = random.Random(seed)
    words = ["red", "green", "blue", "one", "two", "three", "four", "five", "six", "seven"]
    questions = ["What comes after " + " ".join(chance.choices(words, k=3 + number)) for number in range(GROUPS)]
    rows = []
    for number in range(count):
        which = chance.randrange(GROUPS)
        answer = " " + " ".join(chance.choices(words, k=chance.randrange(1, 9)))
        rows.append(
            {"id": "" if number % 10 == 0 else f"q{which}", "question": questions[which] + "?", "answer": answer}
        )
    return rows


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block holds some ten rows, so that groups stretch over many parts."""
    monkeypatch.setattr(scan, "BLOCK_BYTES", 1000)


def configured(folder: Path, *more: Any, **keys: Any) -> kit.Config:
    """Two files of rollouts in one source, and others in a second source under the same groups. The first names the
    column of groups, the other one has a reader.
    """
    (folder / "readers.py").write_text(READER)
    for number, name in enumerate("abc"):
        kit.write(folder / f"{name}.jsonl", rollouts(seed=number))
    source: kit.Config = {"name": "s", "format": "prompt_completion", "keys": KEYS, "path": ["a.jsonl", "b.jsonl"]}
    other: kit.Config = {"name": "t", "format": "python:readers:rollout", "path": "c.jsonl"}
    for changes, each in zip(more, (source, other), strict=False):
        each.update(changes)
    return kit.configure(folder, source, other, **keys)


def run_both(config: kit.Config) -> tuple[kit.Packed, kit.Packed]:
    """The same run with `share: none` and `share: group`."""
    folder = Path(config["out"]).parent
    plain = kit.packed(kit.merged(config, {"out": str(folder / "plain"), "pack": {"share": "none"}}))
    shared = kit.packed(kit.merged(config, {"out": str(folder / "shared"), "pack": {"share": "group"}}))
    return plain, shared


def groups_of(packed: kit.Packed) -> dict[int, tuple[Any, ...]]:
    """What documents must have in common to share, by doc id."""
    table = pq.read_table(packed.folder / "documents.parquet").to_pylist()
    alone = {row["doc_id"]: row["doc_id"] for row in table if not row["group"]}
    return {
        row["doc_id"]: (row["source"], row["group"], alone.get(row["doc_id"]), row["split"], row["copies"])
        for row in table
    }


def stored_tokens(packed: kit.Packed) -> int:
    return sum(entry["tokens_packed"] for entry in packed.ledger.values())


def fewest_tokens(documents: Counter[Whole], groups: dict[int, tuple[Any, ...]]) -> int:
    """What a trie of each group stores, with the one token that each branch repeats; every document is compared with
    every one before it.
    """
    members = defaultdict(list)
    for document, copies in documents.items():
        members[groups[document.doc_id]].append((document, copies))
    stored = 0
    for group in members.values():
        ordered = sorted(group, key=lambda member: (member[0].input_ids, member[0].doc_id))
        for number, (document, copies) in enumerate(ordered):
            first_trained = next(place for place, label in enumerate(document.labels) if label != -100)
            limit = min(first_trained, len(document.input_ids) - 1)
            common = [
                next((place for place in range(limit) if document.input_ids[place : place + 1]
                      != earlier.input_ids[place : place + 1]), limit)
                for earlier, _ in ordered[:number]
            ]  # fmt: skip
            most = max(common, default=0)
            stored += copies * (len(document.input_ids) - (most - 1 if most > 1 else 0))
    return stored


CASES: dict[str, tuple[tuple[kit.Config, ...], kit.Config]] = {
    "default": ((), {"pack": {"row_length": 2048}}),
    "short rows": ((), {"truncate": {"max_length": 40}, "pack": {"row_length": 96}}),
    "held out": ((), {"holdout": {"fraction": 0.3}, "pack": {"row_length": 2048}}),
    "held out one by one": ((), {"holdout": {"fraction": 0.3, "by": "example"}, "pack": {"row_length": 2048}}),
    "repeated": (({"repeat": 3},), {"pack": {"row_length": 2048}}),
    "weighted": (({"weight": 3}, {"weight": 1}), {"pack": {"row_length": 2048}}),
    "in windows": ((), {"pack": {"window_tokens": 900}}),
    "aligned, tight": ((), {"pack": {"align": 8, "strategy": "tight"}}),
    "from the end": ((), {"truncate": {"max_length": 24, "keep": "end"}}),
}


@pytest.mark.parametrize("case", CASES)
def test_every_document_comes_back(case: str, tmp_path: Path) -> None:
    sources, keys = CASES[case]
    plain, shared = run_both(configured(tmp_path, *sources, **keys))
    group_of = groups_of(shared)
    trie = 0
    for split in plain.splits:
        expected = documents_of(plain, split)
        found = documents_of(shared, split)
        if case == "weighted":  # groups are drawn whole, so other documents may have the further copies
            assert found.keys() == expected.keys()
        elif "aligned" in case:  # whose paths have the padding of other pieces
            assert Counter(document.doc_id for document in found) == Counter(document.doc_id for document in expected)
        else:
            assert found == expected
        trie += fewest_tokens(found, group_of)
    assert stored_tokens(shared) < 0.9 * stored_tokens(plain) or case in ("short rows", "from the end")
    if keys.get("pack", {}).get("row_length") == 2048:
        assert stored_tokens(shared) == trie
    elif "aligned" not in case:
        assert trie <= stored_tokens(shared) < stored_tokens(plain)
    assert kit.cli("verify", shared.folder, "--deep").code == 0


def test_a_group_of_a_named_column_is_held_out_as_a_whole(tmp_path: Path) -> None:
    packed = kit.packed(configured(tmp_path, holdout={"fraction": 0.3}))
    splits = defaultdict(set)
    for row in pq.read_table(packed.folder / "documents.parquet").to_pylist():
        if row["source"] == "s" and row["group"]:
            splits[row["group"]].add(row["split"])
    assert {len(of_group) for of_group in splits.values()} == {1}
    assert set().union(*splits.values()) == {"train", "holdout"}


def test_groups_are_drawn_whole(tmp_path: Path) -> None:
    _, shared = run_both(configured(tmp_path, {"weight": 3}, {"weight": 1}))
    copies = defaultdict(set)
    for row in pq.read_table(shared.folder / "documents.parquet").to_pylist():
        if row["group"]:
            copies[row["source"], row["group"]].add(row["copies"])
    assert all(len(of_group) == 1 for of_group in copies.values())
    assert len({*map(tuple, copies.values())}) > 1


def test_bytes_do_not_depend_on_workers(tmp_path: Path) -> None:
    config = configured(tmp_path, pack={"share": "group"})
    manifests = []
    for workers in (1, 3):
        changes = {"run": {"workers": workers}, "out": str(tmp_path / f"with-{workers}")}
        changes["cache"] = str(tmp_path / f"cache-{workers}")
        manifests.append(kit.packed(kit.merged(config, changes)).manifest.hash)
    assert manifests[0] == manifests[1]


def test_large_groups_are_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of their documents: nothing is lost, and less is shared."""
    folders = tmp_path / "whole", tmp_path / "divided"
    for folder in folders:
        folder.mkdir()
    _, whole = run_both(configured(folders[0], pack={"row_length": 2048}))
    monkeypatch.setattr(units, "GROUP_BYTES", 2_000)
    plain, divided = run_both(configured(folders[1], pack={"row_length": 2048}))
    assert documents_of(divided) == documents_of(plain)
    assert stored_tokens(whole) < stored_tokens(divided) < stored_tokens(plain)


@pytest.mark.parametrize("share", ["none", "group"])
def test_a_plan_says_what_a_run_shares(share: str, tmp_path: Path) -> None:
    config = configured(tmp_path, pack={"share": share, "row_length": 512})
    choice = plan(config, (256,), base=tmp_path).choice
    assert choice is not None
    plain, shared = run_both(config)
    factor = stored_tokens(plain) / stored_tokens(shared)
    assert choice.points[0].sharing_factor == pytest.approx(factor)
    text = " ".join(kit.cli("plan", kit.saved(config)).out.split())
    stores = "would store" if share == "none" else "stores"
    assert f"pack.share=group {stores} {factor:.1f} times fewer tokens: documents of one group begin alike" in text


def test_groups_that_are_source_rows_are_not_named(tmp_path: Path) -> None:
    """The turns of a chat have one group, and are made of one row."""
    choice = plan(kit.configure(tmp_path, kit.source("chats", expand="per_turn")), base=tmp_path).choice
    assert choice is not None
    assert choice.sharing is not None
    assert choice.sharing.share == "row"


def test_a_stream_shares_in_each_of_its_windows(tmp_path: Path) -> None:
    config = configured(tmp_path, pack={"share": "group", "row_length": 512})
    documents = kit.packed(config).ledger
    with closing(LiveWindows(config, window_bytes=6000, workers=1, base=tmp_path)) as live:
        rows = [row for window in live.walk(0, 0, 1) for row in window.lay_out(0, window.rows).to_pylist()]
        assert live.count(0) > 1
    parents = [parent for row in rows for parent in row["branch_parents"]]
    assert len(parents) == sum(entry["examples_packed"]["train"] for entry in documents.values())
    assert sum(parent > 0 for parent in parents) > len(parents) / 3
