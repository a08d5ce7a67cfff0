"""What a run says of its mixture and of its holdout: the names and numbers are those of the ledger."""

from pathlib import Path

import pytest

from tests import kit


def test_the_source_whose_repeat_limits_the_mixture_is_named(tmp_path: Path) -> None:
    few = kit.source("pairs", path="few.jsonl", weight=1, repeat=2)
    kit.write(tmp_path / "few.jsonl", kit.corpus("pairs", 9))
    config = kit.configure(tmp_path, kit.source("chats", weight=1), few, kit.source("texts", weight=0.5, repeat=9))
    made = kit.packed(kit.merged(config, {"run": {"report": True}}))
    (said,) = [note for note in made.notes if "mixture" in note]
    ahead = kit.cli("plan", kit.saved(config | {"out": str(tmp_path / "planned")}), "--json")
    assert said in " ".join(ahead.err.split()), "a plan says it, too"
    assert said == "the mixture is limited by pairs (repeat 2)"
    page = (made.folder / "report.html").read_text()
    assert "of the encoded tokens are not drawn, by the weights of the sources." in page
    assert "not drawn: not_sampled" in page
    assert "dropped (not_sampled)" not in page, "it is not lost"


def test_without_repeats_the_source_that_is_used_once_is_named(tmp_path: Path) -> None:
    config = kit.configure(tmp_path, kit.source("chats", weight=1), kit.source("texts", weight=4))
    made = kit.packed(config)
    once = "chats" if not made.ledger["chats"].get("examples_repeated") else "texts"
    (said,) = [note for note in made.notes if "mixture" in note]
    assert said == f"the mixture is limited by {once} (the most tokens for its weight, used once)"


def test_a_source_without_a_holdout_is_named(tmp_path: Path) -> None:
    kit.write(tmp_path / "problems.jsonl", kit.corpus("apps", 12))
    sources = kit.source("apps", path="problems.jsonl"), "texts"
    made = kit.packed(kit.configure(tmp_path, *sources, holdout=1e-9))
    assert [note.partition(", because")[0] for note in made.notes if "held out" in note] == [
        "nothing of source apps is held out",
        "nothing of source texts is held out",
    ]


@pytest.mark.parametrize(
    ("kind", "keys", "is_said"),
    [
        ("chats", {}, True),
        ("chats", {"mask": "completion"}, False),
        ("chats", {"mask": "assistant"}, False),
        ("texts", {}, False),
        ("pairs", {}, False),
    ],
)
def test_the_default_mask_of_chats_is_said_to_who_did_not_choose_it(
    kind: str, keys: kit.Config, is_said: bool, tmp_path: Path
) -> None:
    notes = kit.packed(kit.configure(tmp_path, kind, **keys)).notes
    assert any(note.startswith("mask completion, the default, ") for note in notes) == is_said


@pytest.mark.parametrize(
    ("strategy", "row_length", "is_said"), [("wrapped", 512, True), ("wrapped", 256, False), ("bfd", 512, False)]
)
def test_a_max_length_that_limits_nothing_is_said(
    strategy: str, row_length: int, is_said: bool, tmp_path: Path
) -> None:
    pack = {"strategy": strategy, "row_length": row_length}
    notes = kit.packed(kit.configure(tmp_path, "texts", pack=pack)).notes
    said = [note for note in notes if note.startswith("pack.strategy ")]
    assert len(said) == is_said
    assert all("every 512 tokens" in note and "truncate.max_length 256 limits none" in note for note in said)
