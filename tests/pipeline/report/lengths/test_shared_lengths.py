"""What sharing tokens saves at each length, against runs of that length with and without it."""

import re
from pathlib import Path
from typing import Any

import packtrain
import pytest
from packtrain.pipeline.report.lengths import sharing
from packtrain.pipeline.report.lengths.section import describe_sharing
from packtrain.pipeline.run.plan import plan
from packtrain.schemas.dataset.manifest import Manifest
from packtrain.schemas.report.length_choice import Choice, Point

from tests import kit

LENGTHS = (64, 128, 256)
TURNS = kit.source("chats", expand="per_turn")
CASES: dict[str, tuple[list[Any], kit.Config]] = {
    "turns, solutions": ([TURNS, "apps"], {}),
    "in longer rows": ([TURNS, "apps"], {"pack": {"row_length": 512}}),
    "the ends": ([TURNS, "apps"], {"truncate": {"keep": "end"}, "pack": {"row_length": 1024}}),
    "dropped": ([TURNS, "apps"], {"truncate": {"overlong": "drop"}}),
    "split": (
        ["apps", "texts"],
        {"truncate": {"overlong": "split"}, "keep_untrained": True},
    ),
    "aligned": ([TURNS, "apps"], {"pack": {"align": 8, "strategy": "tight"}}),
    "repeated, held out": ([{**kit.source("apps"), "repeat": 3}, "texts"], {"holdout": {"fraction": 0.3}}),
}


def choice_of(config: kit.Config, *lengths: int) -> Choice:
    choice = plan(config, lengths or LENGTHS, base=Path(config["out"]).parent).choice
    assert choice is not None
    return choice


def tokens_of(manifest: Manifest) -> int:
    """Tokens that the rows of the train split store, without padding."""
    train = manifest.splits["train"]
    return train.tokens - train.padding


@pytest.mark.parametrize("case", CASES)
def test_the_factor_is_that_of_runs_of_each_length(case: str, tmp_path: Path) -> None:
    sources, keys = CASES[case]
    base = kit.configure(tmp_path, *sources, **keys)
    points: dict[str, dict[int, Point]] = {}
    for share in ("none", "row"):
        config = kit.merged(base, {"pack": {"share": share}, "truncate": {"max_length": 256}})
        points[share] = {point.max_length: point for point in choice_of(config).points}
    for length in LENGTHS:
        manifests = {}
        for share in ("none", "row"):
            changes = {"pack": {"share": share}, "truncate": {"max_length": length}}
            changes["out"] = str(tmp_path / f"{share}-{length}")
            manifests[share] = packtrain.run(kit.merged(base, changes), base=tmp_path).manifest
        factor = tokens_of(manifests["none"]) / tokens_of(manifests["row"])
        assert points["none"][length].sharing_factor == pytest.approx(factor, abs=1e-12)
        assert points["row"][length].sharing_factor == pytest.approx(factor, abs=1e-12)
        for share, manifest in manifests.items():
            point = points[share][length]
            train = manifest.splits["train"]
            assert point.tokens == tokens_of(manifest)
            if case == "split":  # of which an estimate does not know where the pieces begin
                continue
            assert point.bound == sum(window.bound for window in train.windows)
            # Copies that stand apart may cost a row.
            assert point.rows <= train.rows <= point.rows + ("repeated" in case)
    least = 1 if case == "the ends" else 1.2  # whose first tokens are no longer equal
    assert any(point.sharing_factor > least for point in points["none"].values() if point.sharing_factor)


def test_a_sample_of_the_groups_is_near_and_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kit.write(tmp_path / "apps.jsonl", kit.corpus("apps", 600))
    config = kit.configure(tmp_path, "apps", truncate={"max_length": 128}, pack={"row_length": 512})
    exact = choice_of(config, 64)
    assert exact.sharing is not None
    assert exact.sharing.compared == exact.sharing.tokens
    monkeypatch.setattr(sharing, "COMPARED_TOKENS", exact.sharing.tokens // 10)
    sampled = choice_of(config, 64)
    assert sampled.sharing is not None
    assert sampled.sharing.tokens == exact.sharing.tokens
    assert sampled.sharing.compared == pytest.approx(exact.sharing.tokens / 10, rel=0.2)
    for point, expected in zip(sampled.points, exact.points, strict=True):
        assert point.sharing_factor == pytest.approx(expected.sharing_factor, rel=0.1)
    of_some = r"\(of 87.1 k tokens, [\d,]+ were compared\)"
    assert re.search(of_some, describe_sharing(sampled))
    assert not re.search(of_some, describe_sharing(exact))
    shared = choice_of(kit.merged(config, {"pack": {"share": "row"}}), 64)
    for point, rows in zip(shared.points, packed_alike(config, tmp_path), strict=True):
        assert point.rows == pytest.approx(rows, rel=0.2)


def packed_alike(config: kit.Config, folder: Path) -> list[int]:
    """The rows of runs of lengths 64 and 128."""
    rows = []
    for length in (64, 128):
        changes = {"pack": {"share": "row"}, "truncate": {"max_length": length}, "out": str(folder / str(length))}
        rows.append(packtrain.run(kit.merged(config, changes), base=folder).manifest.splits["train"].rows)
    return rows


def test_rows_for_two_of_the_longest_documents_are_advised(tmp_path: Path) -> None:
    """The factor of longer rows is that of a run with them; rows that cut no group are not advised to grow."""
    config = kit.configure(tmp_path, "apps", truncate={"max_length": 100})
    choice = choice_of(config)
    sharing = choice.sharing
    assert sharing is not None
    longest = min(100, choice.longest[0][1])
    assert sharing.longer_row_length == 2 * longest
    tokens = {}
    for share in ("none", "row"):
        changes = {"pack": {"share": share, "row_length": 2 * longest}, "out": str(tmp_path / share)}
        tokens[share] = tokens_of(packtrain.run(kit.merged(config, changes), base=tmp_path).manifest)
    assert sharing.longer_rows_factor == pytest.approx(tokens["none"] / tokens["row"])
    said = describe_sharing(choice)
    assert f"pack.row_length={2 * longest} it would be {sharing.longer_rows_factor:.1f} times" in said
    enough = choice_of(kit.merged(config, {"pack": {"row_length": 4096}}))
    assert enough.sharing is not None
    assert enough.sharing.longer_row_length == 4096
    assert "row_length" not in describe_sharing(enough)
    assert "would store" in describe_sharing(enough)
