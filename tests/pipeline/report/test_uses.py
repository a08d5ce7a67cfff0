"""A mixture says how often it uses the examples of each source: before packing, at the end of a run and on the page."""

import random
from pathlib import Path
from typing import Any

import pytest

from tests import kit


def mixture(folder: Path, *sources: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """Sources of documents of ten tokens."""
    chance = random.Random(3)
    named = []
    for number, section in enumerate(sources):
        rows = [{"input_ids": [chance.randrange(300) for _ in range(10)]} for _ in range(section["count"])]
        kit.write(folder / f"s{number}.jsonl", rows)
        named.append(kit.source("ids", name=f"s{number}", path=f"s{number}.jsonl") | section)
        del named[-1]["count"]
    return kit.configure(folder, *named, **{"run": {"report": True}, **keys})


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        (
            [{"count": 60, "weight": 3}, {"count": 400, "weight": 1}],
            "Examples are used: s0 20 times (60 examples), s1 once (400 examples).",
        ),
        (
            [{"count": 60, "weight": 1}, {"count": 20, "weight": 0.5}],
            "Examples are used: s1 1.5 times (20 examples), s0 once (60 examples).",
        ),
        (
            [{"count": 60, "weight": 1, "repeat": 1}, {"count": 300, "weight": 1}],
            "Examples are used: s0 once (60 examples), s1 0.2 times (60 of 300 examples).",
        ),
        ([{"count": 60, "repeat": 3}], "Examples are used: s0 3 times (60 examples)."),
        ([{"count": 60}, {"count": 20}], ""),
        ([{"count": 60, "weight": 3}, {"count": 20, "weight": 1}], ""),
    ],
)
def test_how_often_examples_are_used(sources: list[dict[str, Any]], said: str, tmp_path: Path) -> None:
    config = mixture(tmp_path, *sources)
    file = kit.saved(config)
    ahead = kit.cli("plan", str(file))
    done = kit.cli("run", str(file))
    assert (ahead.code, done.code) == (0, 0), (ahead, done)
    plan, end, page = (
        " ".join(text.split()) for text in (ahead.out, done.out, (tmp_path / "out/report.html").read_text())
    )
    for text in (plan, end, page):
        assert (said in text) if said else ("Examples are used" not in text)
    if said:
        packed = kit.Packed(tmp_path / "out")
        for number, section in enumerate(sources):
            entry = packed.ledger[f"s{number}"]
            uses = (entry["examples_packed"]["train"] + entry["examples_repeated"]) / section["count"]
            words = "once" if uses == 1 else f"{uses:.0f} times" if uses == int(uses) else f"{uses:.2f}"[:3]
            assert f"s{number} {words}" in said


def test_held_out_examples_do_not_count(tmp_path: Path) -> None:
    config = mixture(tmp_path, {"count": 60, "repeat": 4}, {"count": 50}, holdout=0.3)
    done = kit.cli("run", str(kit.saved(config)))
    assert "used: s0 4 times (" in " ".join(done.out.split())


def test_copies_that_share_a_row_are_counted(tmp_path: Path) -> None:
    config = mixture(tmp_path, {"count": 5, "repeat": 40}, truncate={"max_length": 512})
    done = kit.cli("run", str(kit.saved(config)))
    together = kit.Packed(tmp_path / "out").ledger["s0"]["copies_together"]
    assert together > 0
    assert f"{together:,} copies stand in a row with another one." in " ".join(done.out.split())
