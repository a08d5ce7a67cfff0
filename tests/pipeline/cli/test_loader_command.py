"""`packtrain loader`: what a trainer would get, for people and as JSON."""

import json
import shutil
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from packtrain.pipeline.run.driver import run
from packtrain.training import PackedLoader

Command = Callable[..., Any]
DEMO = Path(str(files("packtrain.pipeline.demo")))


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("command")
    rows = root / "ro[bold]ws.jsonl"
    # The file's name looks like markup, as data may.
    rows.write_text("".join(json.dumps({"text": f"text {i} " * (1 + i % 30)}) + "\n" for i in range(200)))
    run(
        {
            "out": str(root / "out"),
            "tokenizer": {"path": str(DEMO / "tokenizer"), "engine": "tokenizers"},
            "sources": [{"name": "text", "format": "text", "path": str(rows)}],
            "truncate": {"max_length": 256},
            "run": {"workers": 1, "report": False},
        }
    )
    return root / "out"


def test_what_it_prints_is_what_the_loader_gives(packed: Path, packtrain: Command) -> None:
    done = packtrain("loader", packed, "--rows-per-step", 4, "--world-size", 2, "--rank", 1, "--steps", 3, "--json")
    assert (done.code, done.err) == (0, "")
    view = json.loads(done.out)
    loader = PackedLoader(packed, rows_per_step=4, rank=1, world_size=2)
    assert (view["steps"], view["rank"], view["world_size"], view["place"]) == (len(loader), 1, 2, "given")
    assert len(view["seen"]) == 3
    for seen, batch in zip(view["seen"], loader, strict=False):
        assert seen["tokens"] == batch["input_ids"].numel()
        assert seen["trained"] == int((batch["labels"] != -100).sum())
        assert seen["documents"] == len(batch["cu_seq_lens_q"]) - 1
        assert seen["longest"] == batch["max_length_q"]
        assert seen["fill"] == pytest.approx(seen["tokens"] / (2 * 256))
        assert seen["balance"] >= 1
    assert view["batch"]["input_ids"] == f"int64 [1, {view['seen'][0]['tokens']}]"
    assert view["first"] > 0
    assert view["tokens_per_second"] > 0


def test_starting_later_gives_the_later_steps(packed: Path, packtrain: Command) -> None:
    command = ("loader", packed, "--rows-per-step", 2, "--json")
    whole = json.loads(packtrain(*command, "--steps", 4).out)["seen"]
    later = json.loads(packtrain(*command, "--steps", 2, "--start", 2).out)["seen"]
    keys = ("step", "documents", "tokens", "trained", "longest")
    assert [[one[key] for key in keys] for one in later] == [[one[key] for key in keys] for one in whole[2:]]


def test_for_people(packed: Path, packtrain: Command) -> None:
    done = packtrain("loader", packed, "--rows-per-step", 2, "--steps", 2, "--explain")
    assert (done.code, done.err) == (0, "")
    shown = (
        "steps of 2 rows, order full",
        "rank 0 of 1",
        "input_ids",
        "cu_seq_lens_q",
        "use_cache",
        " tokens/s over 2 ",
    )
    for what in shown:
        assert what in done.out
    assert "text/ro[bold]ws:" in done.out, "names from the data are text, not markup"


def test_several_datasets_are_mixed(packed: Path, tmp_path: Path, packtrain: Command) -> None:
    other = tmp_path / "other"
    shutil.copytree(packed, other)
    view = json.loads(packtrain("loader", packed, other, "--rows-per-step", 2, "--explain", "--json").out)
    rows = PackedLoader(packed, rows_per_step=1).total_rows
    assert view["steps"] == rows
    assert {one["dataset"] for one in view["documents"]} == {str(packed), str(other)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--rows-per-step", 3, "--world-size", 2),
            "cannot be divided among 2 ranks, which must all get the same number; take",
        ),
        (("--start", 10_000), "--start 10,000: the order has"),
        (("--start", -1), "--start -1: the order has"),
        (("--order", "up"), "order='up': choose one of sequential, full, blocks"),
        (("--tail", "up"), "tail='up': choose one of"),
        (("--split", "holdout"), "has no split 'holdout'; it has train"),
        (("--rank", 1), "give both rank and world_size"),
        (("--rank", 5, "--world-size", 2), "ranks count from 0"),
    ],
)
def test_mistakes(packed: Path, packtrain: Command, arguments: tuple[object, ...], message: str) -> None:
    done = packtrain("loader", packed, *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("packtrain: ")
    assert message in done.err


def test_a_folder_without_a_dataset(tmp_path: Path, packtrain: Command) -> None:
    done = packtrain("loader", tmp_path)
    assert done.code == 2
    assert "has no manifest.json, so it is not a finished dataset" in done.err
