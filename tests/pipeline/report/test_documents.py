"""The documents as the cache has them, and the comparison of lengths, against real runs: the same rows and labels."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import packtrain
import pyarrow.parquet as pq
import pytest
from packtrain.pipeline.dataset.open_dataset import open_dataset
from packtrain.pipeline.inputs import scan as sources_module
from packtrain.pipeline.report.document_lengths import ReadDocuments, documents_of
from packtrain.pipeline.report.lengths import choose
from packtrain.schemas.manifest import Manifest
from packtrain.schemas.report import Point
from packtrain.stages.forecast.length_stats import LengthStats
from packtrain.stages.forecast.sweep import SweepOptions, sweep

from tests import kit

Config = dict[str, Any]
LENGTHS = (32, 128)


@pytest.fixture(scope="module", autouse=True)
def small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(sources_module, "BLOCK_BYTES", 6000)
        yield


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Conversations of several turns, pairs and texts, some of which say the same. Runs share a cache."""
    folder = tmp_path_factory.mktemp("base")
    chats, texts = kit.corpus("chats", 60), kit.corpus("texts", 60)
    kit.write(folder / "chats.jsonl", chats + chats[:15])
    kit.write(folder / "texts.jsonl", texts + texts[20:30])
    sources = [kit.source(kind, path=str(folder / f"{kind}.jsonl")) for kind in ("chats", "pairs", "texts")]
    return kit.configure(folder, *sources, duplicates="drop", filter={"min_tokens": 12})


def found_of(folder: Path, **options: Any) -> ReadDocuments:
    found = documents_of(open_dataset(folder), **options)
    assert not isinstance(found, str), found
    return found


CASES: dict[str, Config] = {
    "bfd": {"duplicates": "keep"},
    "drop": {"truncate": {"overlong": "drop"}, "duplicates": "keep", "filter": {}},
    "the ends": {"mask": "last_assistant", "truncate": {"keep": "end"}},
    "aligned, few": {"pack": {"align": 8, "max_docs": 3}},
    "bfd_split in windows": {"pack": {"strategy": "bfd_split", "window_tokens": 9000, "align": 16}},
}


def configured(base: Config, case: Config, length: int, out: Path) -> Config:
    config = {**base, **case, "out": str(out)}
    config["truncate"] = {**case.get("truncate", {}), "max_length": length}
    return config


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (place % 2)) for place, name in enumerate(CASES)]
)
def test_the_sweep_says_what_runs_do(name: str, base: Config, tmp_path: Path) -> None:
    runs: dict[int, Manifest] = {}
    for length in LENGTHS:
        runs[length] = packtrain.run(configured(base, CASES[name], length, tmp_path / f"{length}"))
    # Of one or the other: what it holds does not depend on the length of the run that it is asked of.
    asked = LENGTHS[[*CASES].index(name) % 2]
    found = found_of(tmp_path / f"{asked}")
    config = found.config
    choice = choose(found.stats, config, found.in_all, LENGTHS)
    points = [one for one in choice.points if one.strategy == config.pack.strategy]
    assert [one.max_length for one in points] == [*LENGTHS]
    assert any(one.documents_cut or one.documents_lost for one in points)
    for point in points:
        agree(point, runs[point.max_length], found.stats)
    assert found.in_all == len(found.stats.lengths)


def agree(outcome: Point, manifest: Manifest, stats: LengthStats) -> None:
    split, total = manifest.splits["train"], manifest.ledger.total()
    config = manifest.plan["config"]
    if config["pack"]["window_tokens"]:
        assert len(split.windows) > 1
    assert split.rows == sum(one.rows for one in split.windows)
    # Copies that stand apart may cost 1 % of the rows of a window.
    apart = sum(max(1, one.rows // 100) for one in split.windows) if total.examples_repeated else 0
    further = len(split.windows) - 1  # a forecast plans all documents together, and each window ends a row
    assert outcome.rows - further <= split.rows <= outcome.rows + apart + further
    assert 0 <= sum(one.bound for one in split.windows) - outcome.bound <= further
    assert outcome.pieces == sum(one.pieces for one in split.windows)
    assert outcome.padding == total.tokens_created.get("alignment", 0)
    assert outcome.tokens + outcome.padding == split.tokens == total.tokens_packed
    assert outcome.tokens == sum(one.tokens for one in split.windows)
    assert outcome.fill == pytest.approx(outcome.tokens / (outcome.rows * manifest.max_length))
    assert outcome.labels == split.trained == total.labels_trained
    assert outcome.documents == total.examples_packed["train"] + total.examples_repeated
    if not total.examples_repeated:  # of which the ledger counts what is cut once
        reasons = ("overlong", "cut_untrained", "untrained_piece")
        by_length = {key: value for key, value in total.tokens_dropped.items() if key in reasons}
        limits = [total.tokens_truncated.get(f"max_{what}_length", 0) for what in ("prompt", "completion")]
        lost = total.tokens_truncated.get("max_length", 0) + sum(by_length.values())
        # A copy of something that is too long is counted by its length in a run; in the stats it is a copy.
        kept = config["duplicates"] == "keep"
        if not any(limits):
            assert outcome.tokens_lost == lost if kept else outcome.tokens_lost <= lost
        assert outcome.documents_lost <= sum(total.examples_dropped.get(one, 0) for one in by_length)
    assert outcome.tokens + outcome.tokens_lost == int(stats.lengths.sum())


WEIGHTS = {"chats": {"weight": 2.0}, "pairs": {"weight": 1.0, "repeat": 2}, "texts": {"weight": 1.5}}


@pytest.mark.parametrize("overlong", ["truncate", "drop"])
def test_copies_are_those_of_the_configured_length(overlong: str, base: Config, tmp_path: Path) -> None:
    config = configured(base, {}, 96, tmp_path / "mixed")
    config["truncate"]["overlong"] = overlong
    config["sources"] = [{**one, **WEIGHTS[one["name"]]} for one in base["sources"]]
    manifest = packtrain.run(config)
    found = found_of(tmp_path / "mixed")
    options = SweepOptions(drop=overlong == "drop")
    (outcome,) = sweep(found.stats, [96], ["bfd"], options)
    agree(outcome, manifest, found.stats)
    assert manifest.ledger.total().examples_repeated > 0


def test_what_is_held_out_is_not_in_it(base: Config, tmp_path: Path) -> None:
    manifest = packtrain.run(configured(base, {"holdout": {"fraction": 0.3}, "mask": "all"}, 96, tmp_path / "held"))
    found = found_of(tmp_path / "held")
    (outcome,) = sweep(found.stats, [96], ["bfd"], SweepOptions())
    assert outcome.rows == manifest.splits["train"].rows
    assert outcome.labels == manifest.splits["train"].trained
    assert manifest.splits["holdout"].rows > 5


def test_the_longest_documents_are_known_by_id(base: Config, tmp_path: Path) -> None:
    packtrain.run(configured(base, {"mask": "all", "duplicates": "keep", "filter": {}}, 4096, tmp_path / "out"))
    table = pq.read_table(tmp_path / "out" / "documents.parquet").to_pylist()
    tokens = {one["id"]: one["tokens"] for one in table}
    every, some = found_of(tmp_path / "out").stats, found_of(tmp_path / "out", most=100).stats
    assert len(some.lengths) < len(every.lengths) == len(tokens)
    for stats in (every, some):
        assert [length for _, length in stats.longest] == np.sort(stats.lengths)[:-4:-1].tolist()
        assert [tokens[name] for name, _ in stats.longest] == [length for _, length in stats.longest]


def test_a_sample_is_of_whole_parts_and_says_of_how_many(base: Config, tmp_path: Path) -> None:
    packtrain.run(configured(base, {"duplicates": "keep", "filter": {}}, 96, tmp_path / "out"))
    whole, some = found_of(tmp_path / "out"), found_of(tmp_path / "out", most=120)
    assert 60 <= len(some.stats.lengths) <= 120 < len(whole.stats.lengths)
    assert abs(some.in_all - len(whole.stats.lengths)) <= 10
    assert some.in_all > len(some.stats.lengths)
    again = found_of(tmp_path / "out", most=120)
    assert np.array_equal(some.stats.lengths, again.stats.lengths)
