"""What a run says of its mixture and of its holdout: the names and numbers are those of the ledger."""

from pathlib import Path

from tests import kit


def test_the_source_whose_repeat_limits_the_mixture_is_named(tmp_path: Path) -> None:
    few = kit.source("pairs", path="few.jsonl", weight=1, repeat=2)
    kit.write(tmp_path / "few.jsonl", kit.corpus("pairs", 9))
    config = kit.configure(tmp_path, kit.source("chats", weight=1), few, kit.source("texts", weight=0.5, repeat=9))
    made = kit.packed(kit.merged(config, {"run": {"report": True}}))
    (said,) = [note for note in made.notes if "mixture" in note]
    ahead = kit.cli("plan", kit.saved(config | {"out": str(tmp_path / "planned")}), "--json")
    assert said in " ".join(ahead.err.split()), "a plan says it, too"
    limit, *others = said.split("; ")
    assert limit == "the mixture is limited by pairs (repeat 2)"
    left = {name: made.ledger[name]["examples_dropped"]["not_sampled"] for name in ("chats", "texts")}
    of = {name: left[name] + made.ledger[name]["examples_packed"]["train"] for name in left}
    assert sorted(others) == sorted(f"{left[name]} of {of[name]} examples of {name} are not drawn" for name in left)
    page = (made.folder / "report.html").read_text()
    assert "of the encoded tokens are not drawn, by the weights of the sources." in page
    assert "not drawn: not_sampled" in page
    assert "dropped (not_sampled)" not in page, "it is not lost"


def test_without_repeats_the_source_that_is_used_once_is_named(tmp_path: Path) -> None:
    config = kit.configure(tmp_path, kit.source("chats", weight=1), kit.source("texts", weight=4))
    made = kit.packed(config)
    once, more = ("chats", "texts") if not made.ledger["chats"].get("examples_repeated") else ("texts", "chats")
    counts = made.ledger[more]
    packed = counts["examples_packed"]["train"]
    used = (packed + counts["examples_repeated"]) / packed
    (said,) = [note for note in made.notes if "mixture" in note]
    assert used > 1
    assert said == (
        f"the mixture is limited by {once} (the most tokens for its weight, used once); {more} is used {used:.2f} times"
    )


def test_a_source_without_a_holdout_is_named_with_its_groups(tmp_path: Path) -> None:
    kit.write(tmp_path / "problems.jsonl", kit.corpus("apps", 12))
    sources = kit.source("apps", path="problems.jsonl"), "texts"
    made = kit.packed(kit.configure(tmp_path, *sources, holdout=1e-9))
    texts = len({row["text"] for row in kit.corpus("texts")})
    assert [note.partition(", and")[0] for note in made.notes if "held out" in note] == [
        "nothing of source apps is held out: it has 9 groups",
        f"nothing of source texts is held out: it has {texts} groups",
    ]
    alone = {"fraction": 1e-9, "by": "example"}
    made = kit.packed(kit.configure(tmp_path, *sources, holdout=alone, out=str(tmp_path / "alone")))
    assert [note.partition(", and")[0] for note in made.notes if "source apps is held out" in note] == [
        "nothing of source apps is held out: it has 18 groups"
    ]
