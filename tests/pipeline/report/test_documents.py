"""The documents as the cache has them, and the comparison of lengths, against real runs: the same rows and labels."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import packtrain
import pyarrow.parquet as pq
import pytest
from packtrain.pipeline.inputs import scan as sources_module
from packtrain.pipeline.pack import read_parts
from packtrain.pipeline.report.lengths.section import describe_advice
from packtrain.pipeline.run.plan import plan
from packtrain.schemas.dataset.manifest import Manifest
from packtrain.schemas.report.length_choice import Choice, Point

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


def compared(config: Config, *lengths: int) -> Choice:
    choice = plan(config, lengths).choice
    assert choice is not None
    return choice


CASES: dict[str, Config] = {
    "drop": {"truncate": {"overlong": "drop"}, "duplicates": "keep", "filter": {}},
    "the ends": {"mask": "last_assistant", "truncate": {"keep": "end"}, "duplicates": "keep"},
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
        runs[length] = packtrain.run(configured(base, CASES[name], length, tmp_path / f"{length}")).manifest
    # Of one or the other: what it holds does not depend on the configured length.
    asked = LENGTHS[[*CASES].index(name) % 2]
    choice = compared(configured(base, CASES[name], asked, tmp_path / "ahead"), *LENGTHS)
    points = [one for one in choice.points if one.strategy == choice.strategy]
    assert [one.max_length for one in points] == [*LENGTHS]
    assert any(one.documents_cut or one.documents_lost for one in points)
    for point in points:
        agree(point, runs[point.max_length], choice)
    assert choice.documents_in_all == choice.documents


def agree(outcome: Point, manifest: Manifest, choice: Choice) -> None:
    split, total = manifest.splits["train"], manifest.ledger.total()
    config, windows = manifest.plan["config"], split.windows
    # Copies that stand apart may cost 1 % of the rows of a window.
    apart = sum(max(1, one.rows // 100) for one in windows) if total.examples_repeated else 0
    further = len(windows) - 1  # an estimate plans all documents together, and each window ends a row
    assert further or not config["pack"]["window_tokens"]
    assert outcome.rows - further <= split.rows <= outcome.rows + apart + further
    assert 0 <= sum(one.bound for one in windows) - outcome.bound <= further
    assert outcome.tokens == sum(one.tokens for one in windows) == total.document_tokens
    assert outcome.fill == pytest.approx(outcome.tokens / (outcome.rows * manifest.max_length))
    assert outcome.labels == split.trained == total.labels_trained
    assert outcome.documents == total.examples_packed["train"] + total.examples_repeated
    assert outcome.tokens + outcome.tokens_lost == choice.points[0].tokens + choice.points[0].tokens_lost
    if not total.examples_repeated:  # of which the ledger counts what is cut once
        by_length = [reason for reason in ("overlong", "cut_untrained") if reason in total.tokens_dropped]
        lost = total.tokens_truncated.get("max_length", 0) + sum(total.tokens_dropped[one] for one in by_length)
        # A copy of something that is too long is counted by its length in a run; here it is a copy.
        assert outcome.tokens_lost <= lost
        assert outcome.tokens_lost == lost or config["duplicates"] == "drop"
        assert outcome.documents_lost <= sum(total.examples_dropped.get(one, 0) for one in by_length)


def test_they_do_not_depend_on_the_configured_length(base: Config, tmp_path: Path) -> None:
    """Of pairs, all are too long for the shorter one."""
    changes: Config = {"chats": {}, "pairs": {"filter": {"min_tokens": 40}, "repeat": 2}, "texts": {"repeat": 3}}
    sources = [{**one, **changes[one["name"]]} for one in base["sources"]]
    case = {"sources": sources, "holdout": {"fraction": 0.3}, "truncate": {"overlong": "drop"}}
    configs = [configured(base, case, length, tmp_path / f"{length}") for length in (36, 4096)]
    short, long = (compared(config, 64, 4096) for config in configs)
    assert (short.lengths, short.longest) == (long.lengths, long.longest)
    assert short.points[1] == long.points[0]
    total = packtrain.run(configs[1]).ledger.total()
    assert short.documents == long.documents == total.examples_packed["train"] + total.examples_repeated


def test_chats_with_a_few_huge_answers_are_no_plain_texts(tmp_path: Path) -> None:
    """Nearly all of their tokens are trained, as of texts; but a later piece of an answer has no question."""
    answers = ["Yes."] * 60 + ["the mules left before the sun was up " * 600] * 3
    chats = [[{"role": "user", "content": "Go on."}, {"role": "assistant", "content": answer}] for answer in answers]
    kit.write(tmp_path / "chats.jsonl", [{"messages": messages} for messages in chats])
    kit.write(tmp_path / "texts.jsonl", [{"text": answer} for answer in answers])
    masks: dict[str, Config] = {"chats": {"mask": "assistant"}, "texts": {}}
    for kind in ("chats", "texts"):
        choice = plan(kit.configure(tmp_path, kit.source(kind), **masks[kind]), base=tmp_path).choice
        assert choice is not None
        point = choice.points[-1]
        assert point.labels >= 0.9 * point.tokens, "nearly all tokens are trained"
        assert choice.texts == (kind == "texts")
        assert ("pack.strategy=bfd_split" in describe_advice(choice)) == (kind == "texts")


WEIGHTS = {"chats": {"weight": 2.0}, "pairs": {"weight": 1.0, "repeat": 2}, "texts": {"weight": 1.5}}


@pytest.mark.parametrize("overlong", ["truncate", "drop"])
def test_copies_are_those_of_the_configured_length(overlong: str, base: Config, tmp_path: Path) -> None:
    config = configured(base, {}, 96, tmp_path / "mixed")
    config["truncate"]["overlong"] = overlong
    config["sources"] = [{**one, **WEIGHTS[one["name"]]} for one in base["sources"]]
    manifest = packtrain.run(config).manifest
    choice = compared(config, 96)
    (outcome,) = (one for one in choice.points if (one.strategy, one.max_length) == ("bfd", 96))
    agree(outcome, manifest, choice)
    assert manifest.ledger.total().examples_repeated > 0


def test_the_longest_documents_are_known_by_id(base: Config, tmp_path: Path) -> None:
    config = configured(base, {"mask": "all", "duplicates": "keep", "filter": {}}, 4096, tmp_path / "out")
    packtrain.run(config)
    table = pq.read_table(tmp_path / "out" / "documents.parquet").to_pylist()
    tokens = {one["id"]: one["tokens"] for one in table}
    choice = compared(config, 4096)
    assert [tokens[name] for name, _ in choice.longest] == sorted(tokens.values())[:-4:-1]
    assert [length for _, length in choice.longest] == sorted(tokens.values())[:-4:-1]
    assert choice.documents == len(tokens)


def test_a_sample_is_of_whole_parts_and_says_of_how_many(
    base: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(base, {"duplicates": "keep", "filter": {}}, 96, tmp_path / "out")
    whole = compared(config, 96)
    monkeypatch.setattr(read_parts, "SAMPLED", 120)
    some = compared(config, 4096)
    assert len({one.tokens + one.tokens_lost for one in some.points}) == 1, "all are of the sample"
    assert 60 <= some.documents <= 120 < whole.documents
    assert abs(some.documents_in_all - whole.documents) <= 10
    assert compared(config, 4096) == some
