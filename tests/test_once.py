"""The same question is never worked out twice, and more data moves no example to the other split."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests import kit

Config = dict[str, Any]


def parts(config: Config) -> dict[str, int]:
    """The encoded parts in the cache, each with its inode: a part that is written again has another."""
    return {path.name: path.stat().st_ino for path in (Path(config["cache"]) / "encoded").rglob("*.arrow")}


def append(file: Path, rows: list[Any]) -> None:
    with file.open("ab") as out:
        out.write(kit.lines(rows))


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Texts and problems, packed into a few shards."""
    return kit.configure(tmp_path, "texts", "apps")


def test_a_finished_run_is_found(config: Config, tmp_path: Path) -> None:
    """Whatever is said of how fast it should be. Where an input was touched or notes are gone, its bytes stay."""
    kit.packed(config)
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*") if "_run" not in path.parts}
    for run in ({}, {"workers": 2}):
        kit.packed(kit.merged(config, {"run": run}))
    assert len(files) > 5
    assert files == {path: path.stat().st_mtime_ns for path in files}
    whole = kit.tree(tmp_path / "out")
    os.utime(tmp_path / "texts.jsonl")
    kit.packed(config)
    assert kit.tree(tmp_path / "out") == whole
    shutil.rmtree(tmp_path / "out" / "_run")  # as in a copy of the dataset alone
    kit.packed(config)
    assert kit.tree(tmp_path / "out") == whole


REPLANNED: dict[str, Config] = {
    "mask": {"mask": "all"},
    "length": {"truncate": {"max_length": 128}},
    "limits": {"truncate": {"max_length": 96, "overlong": "drop"}},
    "pieces": {"truncate": {"max_length": 64, "overlong": "split", "split": {"overlap": 2}}},
    "wrapped": {"pack": {"strategy": "wrapped"}},
    "aligned": {"pack": {"align": 16, "shuffle": False}},
    "divided": {"pack": {"parallel": {"cp": 2}}},
    "seed": {"seed": 7, "holdout": {"fraction": 0.2}},
    "filtered": {"filter": {"min_tokens": 9}, "duplicates": "drop", "keep_untrained": True},
    "weighted": {"loss": {"normalize": "document"}},
}


def test_another_plan_encodes_nothing(config: Config, tmp_path: Path) -> None:
    hashes = {kit.packed(config).manifest.hash}
    encoded = parts(config)
    assert len(encoded) == 2
    for name, change in REPLANNED.items():
        made = kit.packed(kit.merged(config, change | {"out": str(tmp_path / name)}))
        assert parts(config) == encoded, name
        hashes.add(made.manifest.hash)
    assert len(hashes) == len(REPLANNED) + 1


def test_what_changes_the_text_encodes_only_that(config: Config, tmp_path: Path) -> None:
    kit.packed(config)
    before = parts(config)
    texts, apps = config["sources"]
    fewer = {"sources": [texts, apps | {"max_solutions": 1}], "out": str(tmp_path / "fewer")}
    kit.packed(kit.merged(config, fewer))
    after = parts(config)
    assert before.items() <= after.items()
    assert len(after) == 3
    kit.packed(
        kit.merged(config, {"sources": [texts, texts | {"name": "again", "repeat": 2}], "out": str(tmp_path / "twice")})
    )
    assert parts(config) == after, "a file that stands in two sources is encoded once"


def test_names_of_inputs_are_in_ids_and_in_nothing_else(config: Config, tmp_path: Path) -> None:
    first = kit.packed(config)
    before = parts(config)
    (tmp_path / "texts.jsonl").rename(tmp_path / "renamed.jsonl")
    texts, apps = config["sources"]
    renamed = {"sources": [texts | {"path": "renamed.jsonl"}, apps], "out": str(tmp_path / "second")}
    second = kit.packed(kit.merged(config, renamed))
    assert parts(config) == before
    assert second.digest() == first.digest()
    assert second.manifest.hash != first.manifest.hash
    assert sum(one["id"].startswith("texts/renamed:") for one in second.documents()) == 90


def test_nothing_tells_where_it_was_made(config: Config, tmp_path: Path) -> None:
    kit.packed(config)
    for path in (tmp_path / "out").rglob("*"):
        if path.is_file() and "_run" not in path.parts:
            assert str(tmp_path).encode() not in path.read_bytes(), path


@pytest.mark.parametrize("by", ["group", pytest.param("example", marks=pytest.mark.slow)])
def test_more_data_moves_nobody(config: Config, tmp_path: Path, by: str) -> None:
    """Nor does a larger share, which holds out all that the smaller one did."""
    config["holdout"] = {"fraction": 0.3, "by": by}

    def sides(out: str, **keys: Any) -> tuple[set[str], set[str]]:
        """(trained on, held out), by id."""
        made = kit.packed(kit.merged(config, {"out": str(tmp_path / out), "keep_untrained": True} | keys))
        names = {entry["doc_id"]: entry["id"] for entry in made.documents()}
        train, held_out = (
            {names[one] for row in made.rows(split) for one in row["doc_ids"]} for split in ("train", "holdout")
        )
        return train, held_out

    train, hold = sides("before")
    assert 0.2 < len(hold) / len(train | hold) < 0.4
    assert hold < sides("half", holdout={"fraction": 0.6, "by": by})[1]
    assert not hold <= sides("other", seed=1)[1]
    append(tmp_path / "texts.jsonl", kit.corpus("texts", 60, seed=5))
    append(tmp_path / "apps.jsonl", [row | {"id": 1000 + row["id"]} for row in kit.corpus("apps", 40, seed=5)])
    more = sides("after")
    assert train <= more[0]
    assert hold < more[1]
    problems = [{name.split("/")[1] for name in side if name.startswith("apps/")} for side in more]
    assert bool(problems[0] & problems[1]) == (by == "example")
