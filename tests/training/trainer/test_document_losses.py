"""Whose loss it is: each document's is what transformers says of it alone, and together they are what is logged."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from packtrain.pipeline import demo  # noqa: E402
from packtrain.pipeline.run.driver import run  # noqa: E402
from packtrain.schemas.errors import IntegrityError  # noqa: E402
from packtrain.training import PackedLoader  # noqa: E402
from packtrain.training.batch import flatten  # noqa: E402
from packtrain.training.losses.loss_file import FOLDER, read_losses  # noqa: E402
from packtrain.training.order import Source  # noqa: E402
from packtrain.training.rows import PackedRows  # noqa: E402
from packtrain.training.trainer.config import ModelConfig  # noqa: E402
from packtrain.training.trainer.model import load_model  # noqa: E402
from packtrain.training.trainer.run import Outcome, train  # noqa: E402

Settings = Callable[..., dict[str, Any]]
Losses = Callable[[Any, dict[str, Any]], list[tuple[Any, int]]]
STILL = {"learning_rate": 0.0, "weight_decay": 0.0, "max_steps": -1}
"""Weights that stay, so that every step's losses are those of the first model."""


def quietly(config: dict[str, Any]) -> Outcome:
    return train(config, say=lambda text: None)


def rows_of(out: Path | str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_losses(Path(out)).table.to_pylist()
    return rows


def means(outcome: Outcome) -> dict[int, float]:
    """Step → the mean of its documents' losses over their tokens."""
    sums: dict[int, list[float]] = {}
    for row in rows_of(outcome.out):
        one = sums.setdefault(row["step"], [0.0, 0.0])
        one[0] += row["loss"]
        one[1] += row["tokens"]
    return {step: loss / tokens for step, (loss, tokens) in sums.items()}


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of which some are cut into pieces, over rows and within them."""
    root = tmp_path_factory.mktemp("pieces")
    lines = [json.dumps({"text": f"part {i} " * (3 + i * 7 % 60)}) for i in range(40)]
    (root / "long.jsonl").write_text("\n".join(lines))
    run(
        {
            "out": str(root / "packed"),
            "tokenizer": {"path": str(Path(demo.__file__).parent / "tokenizer")},
            "sources": [{"name": "long", "format": "text", "path": str(root / "long.jsonl")}],
            "truncate": {"max_length": 64, "overlong": "split"},
            "run": {"workers": 1, "report": False},
        }
    )
    return root / "packed"


@pytest.fixture(scope="module")
def alone(
    settings_in: Settings, two_sources: Path, pieces: Path, document_losses: Losses
) -> dict[tuple[int, int], list[tuple[Any, int]]]:
    """(dataset, row) → each document's loss by the first model, computed without the others, and its tokens."""
    config = settings_in(Path())
    model = load_model(ModelConfig.model_validate(config["model"]), Path.cwd(), config["seed"])
    with torch.no_grad():
        return {
            (number, row): document_losses(model, flatten([rows.row(row)]))
            for number, rows in enumerate([PackedRows(two_sources), PackedRows(pieces)])
            for row in range(len(rows))
        }


CASES: dict[str, dict[str, Any]] = {
    "plain": {"rows_per_device": 2},
    "two epochs, four batches": {"rows_per_device": 1, "epochs": 2},
    "a last step of untrained rows": {"rows_per_step": 16, "loader": {"tail": "pad"}},
    "a last step of repeated rows": {"rows_per_step": 16, "loader": {"tail": "repeat"}, "rows_per_device": 4},
    "fixed shapes": {"loader": {"static_shapes": True, "tail": "pad"}, "rows_per_device": 2},
    "chunked": {"loss_kernel": "chunked", "document_losses": True},
    "own chunks": {"loss_kernel": "chunked"},
}


@pytest.mark.parametrize("case", CASES)
def test_each_documents_loss_is_that_of_the_document_alone(
    case: str,
    settings: Settings,
    two_sources: Path,
    pieces: Path,
    alone: dict[tuple[int, int], list[tuple[Any, int]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mixture of two datasets, one with documents in pieces; every step, and every document of it once."""
    if case == "own chunks":
        monkeypatch.delattr(torch.nn.functional, "linear_cross_entropy", raising=False)
    data = [{"path": str(two_sources), "epochs": 1}, {"path": str(pieces), "epochs": 2}]
    config = settings(data=data, trainer=STILL, **CASES[case])
    outcome = quietly(config)
    datasets = [PackedRows(two_sources), PackedRows(pieces)]
    loader = PackedLoader(
        [Source(two_sources, epochs=1), Source(pieces, epochs=2)],
        rows_per_step=config["rows_per_step"],
        epochs=config.get("epochs", 1),
        seed=config["seed"],
        **config.get("loader", {}),
    )
    recorded = rows_of(outcome.out)
    assert {row["step"] for row in recorded} == {*range(1, outcome.steps + 1)}
    assert outcome.steps == len(loader)
    several = 0
    for step in range(outcome.steps):
        here = [row for row in recorded if row["step"] == step + 1]
        where = {str(two_sources): 0, str(pieces): 1}
        stood = [(where[one.dataset], one.row, one.doc_id) for one in loader.explain(step)]
        if "pad" not in case and "untrained" not in case and "fixed" not in case:
            # every document of these has a trained token
            assert sorted((row["dataset"], row["row"], row["doc_id"]) for row in here) == sorted(stood)
        for row in here:
            assert (row["dataset"], row["row"], row["doc_id"]) in stood
            assert datasets[row["dataset"]].row(row["row"]).doc_ids[row["place"]] == row["doc_id"]
            loss, tokens = alone[row["dataset"], row["row"]][row["place"]]
            assert row["tokens"] == tokens
            assert row["loss"] == pytest.approx(loss.item(), rel=1e-5)
        several += len({(row["dataset"], row["doc_id"]) for row in here}) < len(here)
    assert several, "no step had two pieces of a document"


def test_together_they_are_the_logged_loss_overall_and_by_source(settings: Settings, two_sources: Path) -> None:
    outcome = quietly(settings(data=str(two_sources), rows_per_device=1))
    logged = {entry["step"]: entry for entry in outcome.log if "loss" in entry}
    assert {step: entry["loss"] for step, entry in logged.items()} == pytest.approx(means(outcome), rel=1e-6)
    assert len(logged) == 6
    import pyarrow.parquet as pq

    table = pq.read_table(two_sources / "documents.parquet")
    source = dict(zip(table.column("doc_id").to_pylist(), table.column("source").to_pylist(), strict=True))
    for name in ("chats", "texts"):
        for step, entry in logged.items():
            mine = [row for row in rows_of(outcome.out) if row["step"] == step and source[row["doc_id"]] == name]
            mean = sum(row["loss"] for row in mine) / sum(row["tokens"] for row in mine)
            assert entry[f"loss_{name}"] == pytest.approx(mean, rel=1e-6)
    # every second step: tokens of both count alike
    seldom = quietly(
        settings(data=str(two_sources), rows_per_device=1, out=f"{outcome.out}-2", trainer={"logging_steps": 2})
    )
    assert means(seldom) == pytest.approx(means(outcome), rel=1e-6)
    for entry in (entry for entry in seldom.log if "loss_chats" in entry and entry["step"] == 4):
        mine = [row for row in rows_of(outcome.out) if row["step"] in (3, 4) and source[row["doc_id"]] == "chats"]
        mean = sum(row["loss"] for row in mine) / sum(row["tokens"] for row in mine)
        assert entry["loss_chats"] == pytest.approx(mean, rel=1e-6)


def test_a_line_names_the_sources_and_tensorboard_has_them(settings: Settings, two_sources: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    said: list[str] = []
    config = settings(data=str(two_sources), trainer={"max_steps": 2, "report_to": ["tensorboard"]})
    outcome = train(config, say=said.append)
    logged = next(entry for entry in outcome.log if "loss" in entry)
    shown = f"loss {logged['loss']:.4f} (chats {logged['loss_chats']:.4f}, texts {logged['loss_texts']:.4f})  grad norm"
    assert any(line.startswith(f"step 1/2  {shown}") for line in said)
    (events,) = outcome.out.rglob("events.out.tfevents.*")
    board = EventAccumulator(str(events))
    board.Reload()
    assert board.Scalars("train/loss_chats")[0].value == pytest.approx(logged["loss_chats"], rel=1e-6)


@pytest.mark.parametrize("kernel", ["none", "chunked"])
def test_the_loss_that_is_trained_on_stays_to_the_bit(
    settings: Settings, two_sources: Path, kernel: str, tmp_path: Path
) -> None:
    def losses(name: str, wanted: bool) -> list[float]:
        config = settings(data=str(two_sources), out=str(tmp_path / name), loss_kernel=kernel, document_losses=wanted)
        return [entry["loss"] for entry in quietly(config).log if "loss" in entry]

    assert losses("with", True) == losses("without", False)
    assert (tmp_path / "with" / FOLDER).is_dir()
    assert not (tmp_path / "without" / FOLDER).exists()


def test_a_kernel_that_gives_only_the_sum_is_said_once(settings: Settings, two_sources: Path) -> None:
    said: list[str] = []
    out = train(settings(data=str(two_sources), loss_kernel="chunked"), say=said.append).out
    assert [line for line in said if "document_losses" in line] == [
        "losses by source and document: none, as loss_kernel chunked gives only their sum; see document_losses"
    ]
    assert not (out / FOLDER).exists()
    assert not any("(" in line for line in said if line.startswith("step "))


def test_resumed_steps_stand_once(settings: Settings, two_sources: Path, tmp_path: Path) -> None:
    keys = {"save_strategy": "steps", "save_steps": 2, "logging_steps": 4, "logging_first_step": False}
    config = settings(data=str(two_sources), trainer=keys)
    whole = quietly(config)
    expected = rows_of(whole.out)
    assert {row["step"] for row in expected} == {*range(1, 7)}
    # as a kill after five steps leaves it: what was not written by the checkpoint is made again
    shutil.rmtree(whole.out / "checkpoint-6")
    shutil.rmtree(whole.out / "checkpoint-4")
    again = quietly(config)
    assert again.resumed_from == whole.out / "checkpoint-2"
    assert sorted(path.name for path in (whole.out / FOLDER).iterdir()) == [
        "after-step-0.arrows",
        "after-step-2.arrows",
    ]
    assert rows_of(whole.out) == expected
    # from the beginning, into the same folder
    for path in whole.out.glob("checkpoint-*"):
        shutil.rmtree(path)
    quietly({**config, "trainer": {**config["trainer"], "max_steps": 3}})
    assert {row["step"] for row in rows_of(whole.out)} == {1, 2, 3}


def test_what_was_seen_before_the_loss_was_no_number_is_written(settings: Settings, two_sources: Path) -> None:
    from packtrain.schemas.errors import DivergedError

    config = settings(data=str(two_sources), trainer={"optim": "sgd", "learning_rate": 1e30, "max_grad_norm": 0})
    with pytest.raises(DivergedError):
        quietly(config)
    assert {row["step"] for row in rows_of(config["out"])} == {1, 2}


def test_a_missing_table_of_documents_ends_no_training(
    settings: Settings, two_sources: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(two_sources, tmp_path / "packed")
    (tmp_path / "packed" / "documents.parquet").unlink()
    config = settings(data=str(tmp_path / "packed"), trainer={"max_steps": 1})
    with caplog.at_level(logging.WARNING):
        assert quietly(config).steps == 1
    assert "losses by source and document are not recorded" in caplog.text
    with pytest.raises(IntegrityError, match=r"documents\.parquet"):
        quietly({**config, "document_losses": True})
