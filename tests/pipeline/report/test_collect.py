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
import packtrain
import pytest
import yaml
from packtrain.pipeline.dataset.open_dataset import open_dataset
from packtrain.pipeline.report.collect import report_of
from packtrain.pipeline.report.page import report_html
from packtrain.pipeline.report.report_files import report_json
from packtrain.pipeline.report.shown import ROW_CHARACTERS
from packtrain.pipeline.run.plan import plan
from packtrain.schemas.dataset.ledger import Ledger, reasons_of, rejected_of
from packtrain.schemas.report.report import Report
from packtrain.schemas.rows import IGNORE_INDEX

from tests import kit

Rows = Callable[..., list[dict[str, Any]]]
HOSTILE = "\x1b[31m<script>alert(1)</script>\u202e"


def words(number: int, most: int = 40) -> str:
    return kit.talk(random.Random(number), most)


@dataclass(frozen=True)
class Mixed:
    """A run over sources with everything in them that may happen to a row."""

    folder: Path
    config: dict[str, Any]

    @property
    def out(self) -> Path:
        return self.folder / "out"


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory, tokenizer_loader: None) -> Mixed:
    folder = tmp_path_factory.mktemp("mixed")
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
    config = kit.configure(
        folder,
        "chats",
        kit.source("texts", repeat=2),
        out="out",
        cache="cache",
        duplicates="drop",
        holdout={"fraction": 0.2},
        filter={"min_tokens": 40},
        run={"report": True},
    )
    del config["output"]
    packtrain.run(config, base=folder)
    return Mixed(folder, config)


def written(out: Path) -> Report:
    """The report at the end of a run."""
    return msgspec.json.decode((out / "report.json").read_bytes(), type=Report)


@pytest.fixture(scope="session")
def report(mixed: Mixed) -> Report:
    return written(mixed.out)


@pytest.fixture
def copy(mixed: Mixed, tmp_path: Path) -> Path:
    """A copy of the dataset, to be damaged; its cache is still found."""
    shutil.copytree(mixed.out, tmp_path / "copy")
    return tmp_path / "copy"


def test_rejects_name_file_and_line(report: Report, mixed: Mixed) -> None:
    assert report.flow is not None
    total = Ledger(dict(report.flow.sources)).total()
    assert rejected_of(total) == {"missing_key": 9, "invalid_json": 1, "empty": 1}
    assert {"duplicate", "max_length", "repeats", "min_tokens"} <= set(reasons_of(total))
    shown = Counter((one.source, one.reason) for one in report.flow.rejects)
    assert shown == {("chats", "missing_key"): 3, ("chats", "invalid_json"): 1, ("texts", "empty"): 1}
    (broken,) = [one for one in report.flow.rejects if one.reason == "invalid_json"]
    assert (mixed.folder / broken.file).read_text().splitlines()[broken.line - 1] == "{broken"
    assert report.flow.rejects_file == str(mixed.out / "rejects.jsonl")


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
        pieces = [len(row["seq_lengths"]) for row in rows]
        assert one.pieces == sum(pieces)
        assert one.bound <= one.rows


def test_the_configuration_reproduces_the_manifest(report: Report, mixed: Mixed, tmp_path: Path) -> None:
    assert report.made is not None
    assert report.made.configuration.startswith(f"# Relative paths start in {mixed.folder}\n")
    noted = yaml.safe_load(report.made.configuration)
    assert "run" not in noted
    assert noted["sources"][1]["repeat"] == 2
    made = packtrain.run(
        {**noted, "out": str(tmp_path / "again"), "run": {"workers": 1, "report": False}}, base=mixed.folder
    )
    assert made.hash == report.made.manifest


# Rows as text


def test_rows_are_shown_as_they_are(report: Report, mixed: Mixed, read_rows: Rows) -> None:
    assert report.training is not None
    rows = read_rows(mixed.out)
    assert 3 <= len(report.training.rows) <= 6
    ids = {one["doc_id"]: one["id"] for one in kit.Packed(mixed.out).documents()}
    for shown in report.training.rows:
        row = rows[shown.row]
        assert (shown.split, shown.tokens, shown.capacity) == ("train", len(row["input_ids"]), 256)
        assert [one.id for one in shown.documents] == [ids[doc_id] for doc_id in row["doc_ids"]]
        assert [one.tokens for one in shown.documents] == row["seq_lengths"]
        trained = sum(label != IGNORE_INDEX for label in row["labels"])
        assert sum(one.trained for one in shown.documents) == trained
        for one in shown.documents:
            assert one.id.startswith(f"{one.source}/")
            if not one.shortened:
                assert sum(piece.tokens for piece in one.pieces) == one.tokens
                assert sum(piece.tokens for piece in one.pieces if piece.weight) == one.trained
        assert sum(len(piece.text) for one in shown.documents for piece in one.pieces) < 2 * ROW_CHARACTERS


# What is gone or damaged


@pytest.mark.parametrize(
    ("gone", "sections"),
    [
        ("documents.parquet", {"choice"}),
        ("rejects.jsonl", {"choice"}),
        ("train/rows.arrow", {"choice"}),
        ("train/shards", {"choice"}),
    ],
)
@pytest.mark.parametrize("how", ["gone", "noise"])
def test_a_section_says_why_it_is_not_there(copy: Path, gone: str, sections: set[str], how: str) -> None:
    for path in [copy / gone] if (copy / gone).is_file() else list((copy / gone).iterdir()):
        content = path.read_bytes()
        path.unlink()
        if how == "noise":
            path.write_bytes(random.Random(1).randbytes(len(content)) + b'\n{"x":' + b"[" * 100_000)
    made = report_of(open_dataset(copy))
    assert set(made.absent) == sections
    for name in sections:
        assert getattr(made, name) is None
        assert len(made.absent[name]) > 20
    assert made.training is not None
    if gone in ("documents.parquet", "train/shards"):
        assert made.training.rows == []
        assert made.training.rows_absent
    assert report_html(made)
    assert msgspec.json.decode(report_json(made), type=Report) == made


# Other kinds of data


def test_preference_pairs(tmp_path: Path) -> None:
    rows = [{"prompt": words(n), "chosen": words(n + 1), "rejected": words(n + 2)} for n in range(30)]
    kit.write(tmp_path / "choices.jsonl", [*rows, {}])
    limit = {"max_length": 48, "keep": "end"}
    config = kit.configure(
        tmp_path, kit.source("choices", repeat=2), truncate=limit, run={"report": True}, pack={"strategy": "none"}
    )
    ahead = plan(config, base=tmp_path)
    manifest = packtrain.run(config, base=tmp_path)
    made = written(tmp_path / "out")
    assert made.absent == {}
    assert made.choice == ahead.choice
    assert ahead.flow is not None
    assert made.flow is not None
    assert ahead.flow.sources == made.flow.sources == manifest.ledger.sources
    assert rejected_of(Ledger(dict(made.flow.sources)).total()) == {"missing_key": 1}
    assert made.training is not None
    parts = [(one.side, bool(one.trained)) for one in made.training.rows[0].documents]
    assert parts == [("prompt", False), ("chosen", True), ("rejected", True)]
    assert made.packing is not None
    assert made.packing.splits[0].rows == 2 * manifest.ledger.total().examples_packed["train"]


@pytest.mark.parametrize(
    "more",
    [
        {"pack": {"strategy": "wrapped", "window_tokens": 3000}},
        {"pack": {"strategy": "bfd_split", "max_docs": 3}},
        {"pack": {"strategy": "none"}, "mask": "all", "truncate": {"max_length": 64, "keep": "end"}},
        {"pack": {"strategy": "tight", "max_docs": 3}, "truncate": {"max_length": 512}},
        {"pack": {"max_docs": 3, "parallel": {"cp": 2, "layout": "ring"}}},
        {"pack": {"row_length": 512}, "truncate": {"max_length": 64}},
        {"pack": {"strategy": "tight", "row_length": 240, "align": 16}, "truncate": {"max_length": 70}},
        {"pack": {"strategy": "bfd_split", "row_length": 160}, "truncate": {"max_length": 64}},
        {"pack": {"align": 16}, "truncate": {"overlong": "split", "max_length": 128, "split": {"overlap": 9}}},
    ],
    ids=str,
)
def test_the_plan_says_what_the_run_does(mixed: Mixed, tmp_path: Path, more: dict[str, Any], read_rows: Rows) -> None:
    config = {**mixed.config, "out": str(tmp_path / "out"), **more}
    ahead = plan(config, base=mixed.folder)
    packtrain.run(config, base=mixed.folder)
    made = written(tmp_path / "out")
    assert made.absent == {}
    assert ahead.flow is not None
    assert made.flow is not None
    assert ahead.flow.sources == made.flow.sources, "the whole ledger"
    assert ahead.packing is not None
    assert made.packing is not None
    assert ahead.packing.splits == made.packing.splits
    # One section says what another does, and what the rows are.
    assert ahead.choice == made.choice
    assert made.choice is not None
    assert made.packing.row_length == more["pack"].get("row_length", made.choice.max_length)
    own = (more["pack"].get("strategy", "bfd"), made.choice.max_length)
    (point,) = [one for one in made.choice.points if (one.strategy, one.max_length) == own]
    rows, (train,) = read_rows(tmp_path / "out"), [one for one in made.packing.splits if one.split == "train"]
    assert point.rows == train.rows == len(rows)
    assert point.labels == train.labels == sum(label != IGNORE_INDEX for row in rows for label in row["labels"])
    assert point.tokens + train.padding == train.tokens
    assert made.training is not None
    if own[0] in ("wrapped", "bfd_split"):
        assert any(one.start > 0 for row in made.training.rows for one in row.documents), "a continued document"
