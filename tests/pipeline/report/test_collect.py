"""The report of real runs: its numbers are those of the shards, and damage is reported without an exception."""

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import packtrain
import pyarrow.parquet as pq
import pytest
import yaml
from packtrain.pipeline.dataset.open import open_dataset
from packtrain.pipeline.report.collect.gather import report_of
from packtrain.pipeline.report.collect.lengths.packed import spreads_of
from packtrain.pipeline.report.collect.rows.packing import planned_places
from packtrain.pipeline.report.collect.rows.shown import ALL_CHARACTERS, ROW_CHARACTERS
from packtrain.pipeline.report.collect.saving import savings_of
from packtrain.pipeline.report.files import report_html, report_json
from packtrain.pipeline.report.options import ReportOptions
from packtrain.pipeline.run.forecast import plan
from packtrain.schemas.report import Report
from packtrain.schemas.rows import IGNORE_INDEX
from packtrain.stages.mask.policy import Mask

Rows = Callable[..., list[dict[str, Any]]]
WORDS = ("mules", "left", "the", "valley", "before", "sun", "was", "up", "nobody", "told", "them", "how", "far")
HOSTILE = "\x1b[31m<script>alert(1)</script>\u202e"


def words(number: int, most: int = 40) -> str:
    chance = random.Random(number)
    return " ".join(chance.choice(WORDS) for _ in range(chance.randrange(1, most)))


@dataclass(frozen=True)
class Mixed:
    """A run over sources with everything in them that may happen to a row."""

    folder: Path
    config: dict[str, Any]

    @property
    def out(self) -> Path:
        return self.folder / "out"


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Path, answered: Callable[[Path], Path]) -> Mixed:
    folder = tmp_path_factory.mktemp("mixed")
    shutil.copytree(answered(tiny_tokenizer), folder / "cache" / "tokenizers")
    chats = [
        {
            "messages": [
                {"role": role, "content": words(number * 10 + turn, 60) + (HOSTILE if number == 3 else "")}
                for turn in range(1 + number % 3)
                for role in ("user", "assistant")
            ]
        }
        for number in range(60)
    ]
    lines = [json.dumps(row) for row in [*chats, *chats[:5]]]
    lines[7:7] = ["{broken", '{"text": 1}', ""]
    (folder / "chats.jsonl").write_text("\n".join(lines) + "\n" + "{}\n" * 8)
    texts = [{"text": words(number, 400)} for number in range(40)] + [{"text": ""}]
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts))
    config = {
        "out": "out",
        "cache": "cache",
        "tokenizer": {"path": str(tiny_tokenizer), "engine": "tokenizers"},
        "sources": [
            {"name": "chats", "format": "messages", "path": "chats.jsonl"},
            {"name": "texts", "format": "text", "path": ["texts.jsonl"], "repeat": 2},
        ],
        "duplicates": "drop",
        "holdout": {"fraction": 0.2},
        "truncate": {"max_length": 256},
        "filter": {"min_tokens": 40},
        "run": {"workers": 1, "report": False},
    }
    packtrain.run(config, base=folder)
    return Mixed(folder, config)


@pytest.fixture(scope="session")
def report(mixed: Mixed) -> Report:
    return report_of(mixed.out, ReportOptions(world_size=2))


@pytest.fixture
def copy(mixed: Mixed, tmp_path: Path) -> Path:
    """A copy of the dataset, to be damaged; its cache is still found."""
    shutil.copytree(mixed.out, tmp_path / "copy")
    return tmp_path / "copy"


def test_every_section_is_there(report: Report, mixed: Mixed) -> None:
    assert report.absent == {}
    assert None not in (report.choice, report.flow, report.training, report.packing, report.batch, report.trust)
    assert (report.kind, report.name, report.packtrain) == ("run", "out", packtrain.__version__)
    assert not (mixed.out / "report.html").exists(), "report: false"


def test_it_reads_back_from_its_json(report: Report) -> None:
    assert msgspec.json.decode(report_json(report), type=Report) == report


def test_the_flow_is_that_of_the_ledger(report: Report) -> None:
    assert report.flow is not None
    assert [fate.source for fate in report.flow.fates] == ["all", "chats", "texts"]
    assert report.flow.rejected == {"missing_key": 9, "invalid_json": 1, "empty": 1}
    assert {"duplicate", "max_length", "repeats", "min_tokens"} <= set(report.flow.reasons)


def test_rejects_name_file_and_line(report: Report, mixed: Mixed) -> None:
    assert report.flow is not None
    shown = Counter((one.source, one.reason) for one in report.flow.rejects)
    assert shown == {("chats", "missing_key"): 5, ("chats", "invalid_json"): 1, ("texts", "empty"): 1}
    broken = next(one for one in report.flow.rejects if one.reason == "invalid_json")
    assert (broken.file, broken.line) == ("chats.jsonl", 8)
    assert broken.line is not None
    assert broken.path == str(mixed.folder / "chats.jsonl")
    assert Path(broken.path).read_text().splitlines()[broken.line - 1] == "{broken"
    assert report.flow.rejects_file == str(mixed.out / "rejects.jsonl")


def test_shares_and_lengths_are_those_of_the_documents(report: Report, mixed: Mixed) -> None:
    assert report.training is not None
    ledger = open_dataset(mixed.out).manifest.ledger
    table = pq.read_table(mixed.out / "documents.parquet")
    for one in report.training.sources:
        entry = ledger.sources[one.source]
        assert (one.tokens, one.labels) == (entry.tokens_packed, entry.labels_trained)
        mine = [n for n, name in zip(table["tokens"].to_pylist(), table["source"].to_pylist(), strict=True)
                if name == one.source]  # fmt: skip
        assert one.lengths is not None
        assert one.prompts is not None
        assert one.completions is not None
        assert (one.lengths.count, one.lengths.total) == (len(mine), sum(mine))
        assert one.lengths.quantiles["max"] == max(mine)
        assert one.prompts.count == one.completions.count == len(mine)
        assert one.prompts.total + one.completions.total == sum(mine)
    chats, texts = report.training.sources
    assert chats.turns_each is not None
    assert chats.turns_each.total == chats.turns
    assert texts.prompts is not None
    assert texts.prompts.total == 0, "of a text, all is trained"


def test_of_many_documents_some_are_read(mixed: Mixed) -> None:
    dataset = open_dataset(mixed.out)
    some = spreads_of(dataset, Mask(), most=1, looked_into=1)
    assert some.exact, "one row group is the least"
    assert not some.exact_runs
    assert 0 < sum(one.prompts.count for one in some.sources.values()) < dataset.manifest.ledger.total().examples_made


def test_packing_is_that_of_the_rows(report: Report, mixed: Mixed, read_rows: Rows) -> None:
    packing = report.packing
    assert packing is not None
    assert {one.split for one in packing.splits} == {"train", "holdout"}
    for one in packing.splits:
        rows = read_rows(mixed.out, one.split)
        sizes = [len(row["input_ids"]) for row in rows]
        assert (one.rows, one.tokens) == (len(rows), sum(sizes))
        assert one.labels == sum(label != IGNORE_INDEX for row in rows for label in row["labels"])
        assert one.fill == pytest.approx(sum(sizes) / (256 * len(rows)))
        assert one.fills.count == len(rows)
        assert one.fills.total == pytest.approx(sum(sizes) / 256)
        assert one.fills.quantiles["min"] == min(sizes) / 256
        pieces = [len(row["seq_lengths"]) for row in rows]
        assert (one.documents.count, one.documents.total) == (len(rows), sum(pieces))
        assert one.pieces == sum(pieces)
        assert one.bound <= one.rows


def test_the_order_is_that_of_the_plan(
    report: Report, mixed: Mixed, copy: Path, tmp_path: Path, read_rows: Rows
) -> None:
    """Unshuffling gives the very order that a run without shuffling writes."""
    plain = {**mixed.config, "out": str(tmp_path / "plain"), "pack": {"shuffle": False}}
    packtrain.run(plain, base=mixed.folder)
    shuffled, planned = read_rows(mixed.out), read_rows(tmp_path / "plain")
    manifest = open_dataset(mixed.out).manifest
    places = planned_places(manifest, manifest.splits["train"], np.arange(len(shuffled)))
    assert places is not None
    assert [planned[place]["doc_ids"] for place in places] == [row["doc_ids"] for row in shuffled]
    assert report.packing is not None
    assert report.packing.order_before is not None
    assert report.packing.order_after is not None
    assert report.packing.order_before < -0.5, "the planner begins with the longest"
    assert abs(report.packing.order_after) < abs(report.packing.order_before)
    unshuffled = report_of(tmp_path / "plain").packing
    assert unshuffled is not None
    assert unshuffled.order_after == unshuffled.order_before == pytest.approx(report.packing.order_before)


def test_balance_is_no_worse_as_the_loader_deals(report: Report) -> None:
    assert report.packing is not None
    assert [one.rows_each for one in report.packing.balance] == [1, 8][: len(report.packing.balance)]
    assert report.packing.balance
    for one in report.packing.balance:
        assert 1 <= one.balanced <= one.worst <= 2
        assert one.plain >= 1


def test_savings_are_of_the_same_documents(report: Report) -> None:
    packing, choice = report.packing, report.choice
    assert packing is not None
    assert choice is not None
    padded, free, mine = packing.savings
    assert [padded.strategy, free.strategy, mine.strategy] == ["padded", "padding_free", "bfd"]
    train = next(one for one in packing.splits if one.split == "train")
    assert mine.slots == train.tokens
    assert free.slots == train.tokens, "the sweep and the run pack the same"
    assert padded.slots > free.slots
    assert mine.steps == -(-train.rows // choice.batch) < padded.steps
    assert padded.seconds == pytest.approx(padded.flops / packing.device_flops)
    point = next(one for one in choice.points if (one.strategy, one.max_length) == ("bfd", 256))
    assert point.rows == train.rows
    assert mine.flops == pytest.approx(point.flops)


def test_batches_keep_their_tokens(report: Report) -> None:
    batch = report.batch
    assert batch is not None
    assert [one.examples for one in batch.recipes] == [8, 16, 32, 64, 128, 256, 512, 1024]
    for one in batch.recipes:
        assert one.tokens == pytest.approx(one.examples * batch.tokens_an_example)
        if one.rows > 1:
            assert abs(one.rows * batch.tokens_a_row - one.tokens) <= batch.tokens_a_row * 0.501
        assert one.examples_then == pytest.approx(one.rows * batch.examples_a_row)
        assert one.steps == -(-report_rows(report) // one.rows)


def report_rows(report: Report) -> int:
    assert report.packing is not None
    return next(one.rows for one in report.packing.splits if one.split == "train")


def test_the_configuration_reproduces_the_manifest(report: Report, tmp_path: Path) -> None:
    assert report.trust is not None
    (tmp_path / "again.yaml").write_text(report.trust.configuration)
    written = yaml.safe_load(report.trust.configuration)
    assert "run" not in written
    assert written["sources"][1]["repeat"] == 2
    made = packtrain.run({**written, "out": str(tmp_path / "again"), "run": {"workers": 1, "report": False}})
    assert made.hash == report.trust.manifest


def test_the_stages_have_rates(report: Report) -> None:
    assert report.trust is not None
    stages = {one.name: one for one in report.trust.stages}
    assert {"scan", "encode", "plan", "plan and pack"} <= set(stages)
    assert stages["scan"].amount == report.trust.bytes_in_all > 0
    assert stages["plan and pack"].unit == "tokens"
    assert report.trust.inputs_in_all == len(report.trust.inputs) == 2


def test_a_rate_is_of_what_the_run_itself_did(
    mixed: Mixed, tmp_path: Path, tiny_tokenizer: Path, answered: Callable[[Path], Path]
) -> None:
    shutil.copytree(answered(tiny_tokenizer), tmp_path / "cache" / "tokenizers")
    config = {**mixed.config, "cache": str(tmp_path / "cache"), "out": str(tmp_path / "first")}
    first = packtrain.run({**config, "sources": config["sources"][:1]}, base=mixed.folder)
    amounts = _amounts(tmp_path / "first")
    assert amounts["encode"] == amounts["encode, summed over workers"] == first.ledger.total().tokens_encoded > 0
    assert amounts["plan and pack"] == sum(split.tokens for split in first.splits.values())
    second = packtrain.run({**config, "out": str(tmp_path / "both")}, base=mixed.folder)
    amounts = _amounts(tmp_path / "both")
    assert amounts["encode"] == second.ledger.sources["texts"].tokens_encoded > 0
    # Interrupted before its end: what is left is less than all, here nothing.
    for name in ("manifest.json", "_run/request.json"):
        (tmp_path / "both" / name).unlink()
    assert packtrain.run({**config, "out": str(tmp_path / "both")}, base=mixed.folder).hash == second.hash
    amounts = _amounts(tmp_path / "both")
    assert amounts["encode"] is amounts["plan and pack"] is amounts["pack, summed over workers"] is None


def _amounts(out: Path) -> dict[str, float | None]:
    trust = report_of(out).trust
    assert trust is not None
    return {one.name: one.amount for one in trust.stages}


# Rows as text


def test_rows_are_shown_as_they_are(report: Report, mixed: Mixed, read_rows: Rows) -> None:
    assert report.training is not None
    rows = read_rows(mixed.out)
    assert 3 <= len(report.training.rows) <= 6
    for shown in report.training.rows:
        row = rows[shown.row]
        assert (shown.split, shown.tokens, shown.capacity) == ("train", len(row["input_ids"]), 256)
        assert [one.doc_id for one in shown.documents] == row["doc_ids"]
        assert [one.tokens for one in shown.documents] == row["seq_lengths"]
        trained = sum(label != IGNORE_INDEX for label in row["labels"])
        assert sum(one.trained for one in shown.documents) == trained
        for one in shown.documents:
            assert one.id.startswith(f"{one.source}/")
            if not one.shortened:
                assert sum(piece.tokens for piece in one.pieces) == one.tokens
                assert sum(piece.tokens for piece in one.pieces if piece.trained) == one.trained
        assert sum(len(piece.text) for one in shown.documents for piece in one.pieces) < 2 * ROW_CHARACTERS


def test_a_cut_document_is_among_them(report: Report, mixed: Mixed) -> None:
    assert report.training is not None
    table = pq.read_table(mixed.out / "documents.parquet")
    tokens = dict(zip(table["doc_id"].to_pylist(), table["tokens"].to_pylist(), strict=True))
    cut = [one for row in report.training.rows for one in row.documents if one.tokens < tokens[one.doc_id]]
    assert cut, "a third of the texts are cut"


@pytest.mark.parametrize("wanted", [0, 1, 100])
def test_so_many_rows_as_are_asked_for(mixed: Mixed, wanted: int) -> None:
    training = report_of(mixed.out, ReportOptions(rows=wanted)).training
    assert training is not None
    assert len(training.rows) <= wanted
    assert bool(training.rows) == bool(wanted)
    assert (training.rows_absent is None) == bool(wanted)
    characters = sum(len(piece.text) for row in training.rows for one in row.documents for piece in one.pieces)
    assert characters < 3 * ALL_CHARACTERS


def test_hostile_text_stays_text(mixed: Mixed) -> None:
    made = report_of(mixed.out, ReportOptions(rows=100))
    page = report_html(made)
    assert b"<script>alert(1)" not in page
    assert b"\x1b" not in page
    assert b"\x1b" not in report_json(made)


# What is gone or damaged


@pytest.mark.parametrize(
    ("gone", "sections", "words"),
    [
        ("_run/parts.json", {"choice"}, "again"),
        ("_run/config.json", {"choice"}, "again"),
        ("_run/timings.json", set(), ""),
        ("_run/scan.json", {"choice"}, "again"),
        ("_run/request.json", set(), ""),
        ("documents.parquet", set(), ""),
        ("rejects.jsonl", set(), ""),
        ("train/rows.arrow", {"packing"}, "repair"),
        ("train/shards", {"packing"}, "missing"),
    ],
)
@pytest.mark.parametrize("how", ["gone", "cut", "noise"])
def test_a_section_says_why_it_is_not_there(copy: Path, gone: str, sections: set[str], words: str, how: str) -> None:
    for path in [copy / gone] if (copy / gone).is_file() else list((copy / gone).iterdir()):
        content = path.read_bytes()
        path.unlink()
        if how == "cut":
            path.write_bytes(content[: len(content) // 2])
        elif how == "noise":
            path.write_bytes(random.Random(1).randbytes(len(content)))
    made = report_of(copy)
    assert set(made.absent) == sections
    for name in sections:
        assert getattr(made, name) is None
        assert len(made.absent[name]) > 20
    assert made.training is not None
    if gone in ("documents.parquet", "train/shards"):
        assert made.training.rows == []
        assert made.training.rows_absent
    if gone in ("documents.parquet", "_run/parts.json", "_run/scan.json"):
        assert all(one.prompts is None for one in made.training.sources)
    assert report_html(made)
    assert msgspec.json.decode(report_json(made), type=Report) == made


def test_without_the_cache(mixed: Mixed, tmp_path: Path) -> None:
    shutil.copytree(mixed.folder, tmp_path / "moved", ignore=shutil.ignore_patterns("cache"))
    out = tmp_path / "moved" / "out"
    listed = json.loads((out / "_run" / "parts.json").read_text())
    (out / "_run" / "parts.json").write_text(json.dumps({**listed, "cache": str(tmp_path / "nowhere")}))
    made = report_of(out)
    assert set(made.absent) == {"choice"}
    assert "cache" in made.absent["choice"]
    assert made.packing is not None
    assert made.packing.savings == []
    assert made.training is not None
    assert all(one.lengths is not None and one.prompts is None for one in made.training.sources)


def test_a_copy_has_the_same_report(copy: Path, report: Report) -> None:
    made = report_of(copy, ReportOptions(world_size=2))
    assert (made.training, made.packing, made.batch, made.choice) == (
        report.training,
        report.packing,
        report.batch,
        report.choice,
    )
    assert made.trust is not None
    assert report.trust is not None
    assert made.trust.manifest == report.trust.manifest


# Other kinds of data


def test_preference_pairs(tmp_path: Path, tiny_tokenizer: Path, new_cache: Callable[[Path], Path]) -> None:
    rows = [{"prompt": words(n), "chosen": words(n + 1), "rejected": words(n + 2)} for n in range(30)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + "{}\n")
    manifest = packtrain.run(
        {
            "out": str(tmp_path / "out"),
            "cache": str(new_cache(tiny_tokenizer)),
            "tokenizer": {"path": str(tiny_tokenizer), "engine": "tokenizers"},
            "sources": [{"name": "pairs", "format": "preference", "path": str(tmp_path / "pairs.jsonl")}],
            "run": {"workers": 1},
        }
    )
    made = report_of(tmp_path / "out")
    assert set(made.absent) == {"choice", "packing", "batch"}
    assert made.flow is not None
    assert made.flow.rejected == {"missing_key": 1}
    assert made.training is not None
    (share,) = made.training.sources
    packed = manifest.ledger.total().examples_packed["train"]
    assert share.prompts is not None
    assert share.completions is not None
    assert (share.prompts.count, share.completions.count) == (packed, 2 * packed)
    assert (made.training.rows, made.training.rows_absent) == ([], None)
    assert made.trust is not None
    assert (tmp_path / "out" / "report.html").stat().st_size < 6 << 20


@pytest.mark.parametrize(
    "more",
    [
        {"pack": {"strategy": "wrapped"}},
        {"pack": {"strategy": "bfd_split"}, "output": {"format": "parquet"}},
        {"pack": {"strategy": "none"}},
        {"pack": {"align": 16, "window_tokens": 3000}, "truncate": {"overlong": "split", "max_length": 128}},
    ],
)
def test_every_strategy_has_a_report(mixed: Mixed, tmp_path: Path, more: dict[str, Any], read_rows: Rows) -> None:
    config = {**mixed.config, "out": str(tmp_path / "out"), **more}
    manifest = packtrain.run(config, base=mixed.folder)
    made = report_of(tmp_path / "out")
    assert made.absent == {}
    assert made.packing is not None
    assert made.packing.strategy == more["pack"].get("strategy", "bfd")
    train = next(one for one in made.packing.splits if one.split == "train")
    assert train.rows == manifest.splits["train"].rows
    assert train.documents.total == sum(len(row["seq_lengths"]) for row in read_rows(tmp_path / "out"))
    assert made.training is not None
    if more["pack"].get("strategy") in ("wrapped", "bfd_split"):
        assert any(one.start > 0 for row in made.training.rows for one in row.documents), "a continued document"
    # What the plan says is what the run does, and one section says what another does.
    ahead = plan(config, base=mixed.folder)
    assert (ahead.choice, ahead.batch) == (made.choice, made.batch)
    assert made.choice is not None
    known = "bfd" if made.packing.strategy == "none" else made.packing.strategy
    point = next(one for one in made.choice.points if (one.strategy, one.max_length) == (known, made.choice.max_length))
    assert point.tokens + point.padding == train.tokens
    assert made.packing.savings[-1].slots == train.tokens
    if made.packing.strategy != "none":
        assert (point.rows, point.bound) == (train.rows, train.bound)
        assert point.fill == pytest.approx(train.fill)


def test_a_run_of_one_row(tmp_path: Path, tiny_tokenizer: Path, new_cache: Callable[[Path], Path]) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "hello there"}\n')
    packtrain.run(
        {
            "out": str(tmp_path / "out"),
            "cache": str(new_cache(tiny_tokenizer)),
            "tokenizer": {"path": str(tiny_tokenizer), "engine": "tokenizers"},
            "sources": [{"name": "one", "format": "text", "path": str(tmp_path / "in.jsonl")}],
            "run": {"workers": 1, "report": False},
        }
    )
    made = report_of(tmp_path / "out")
    assert made.absent == {}
    assert made.packing is not None
    assert (made.packing.balance, made.packing.order_before) == ([], None)
    assert made.batch is not None
    assert {one.rows for one in made.batch.recipes} <= {1, *range(2, 1025)}


def test_savings_of_a_run_that_splits_are_for_as_many_tokens(report: Report) -> None:
    choice = report.choice
    assert choice is not None
    tokens = sum(one.tokens for one in choice.points if (one.strategy, one.max_length) == ("padding_free", 256))
    split = next(one for one in choice.points if (one.strategy, one.max_length) == ("bfd_split", 256))
    assert split.tokens > tokens, "truncation loses some"
    for strategy, expected in (("bfd", tokens), ("bfd_split", split.tokens)):
        padded, free, mine = savings_of(
            choice, strategy, split.rows, split.tokens, split.squares, 1e12, choice.shape
        )  # fmt: skip
        assert free.slots == expected
        assert padded.slots > free.slots
        assert mine.slots == split.tokens
