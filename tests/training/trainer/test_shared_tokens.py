"""Trainings on rows whose documents share tokens take the steps that the same documents take without sharing."""

from pathlib import Path

import pytest
from packtrain.schemas.errors import ConfigError
from packtrain.training.trainer.explain import explain_step
from packtrain.training.trainer.train_config import TrainConfig

from tests import kit
from tests.training.trainer.trainings import SGD, Settings, losses, quietly


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, kit.Packed]:
    """The same turns of chats, packed without and with sharing."""
    folder = tmp_path_factory.mktemp("turns")
    kit.write(folder / "few.jsonl", kit.corpus("chats", 16))
    turns = {"name": "few", "path": "few.jsonl", "format": "messages", "expand": "per_turn"}
    config = kit.configure(folder, turns, holdout={"fraction": 0.3})
    return {
        share: kit.packed(kit.merged(config, {"out": str(folder / share), "pack": {"share": share, "row_length": 512}}))
        for share in ("none", "row")
    }


def test_steps_over_all_documents_are_the_same(
    datasets: dict[str, kit.Packed], settings: Settings, tmp_path: Path
) -> None:
    """One step takes every row, so that both see all documents: the second loss shows the first gradient."""
    outcomes = {}
    for share, packed in datasets.items():
        config = settings(
            out=tmp_path / share,
            data=str(packed.folder),
            rows_per_step=len(packed.rows("train")),
            rows_per_device=len(packed.rows("train")),
            epochs=3,
            eval={"split": "holdout"},
            probe=share == "row",
            trainer={**SGD, "max_steps": 3},
        )
        outcomes[share] = quietly(config)
    assert len(datasets["row"].rows()) < len(datasets["none"].rows())
    assert losses(outcomes["row"]) == pytest.approx(losses(outcomes["none"]), rel=2e-5)
    assert outcomes["row"].metrics["eval_loss"] == pytest.approx(outcomes["none"].metrics["eval_loss"], rel=2e-5)
    assert outcomes["row"].metrics["eval_tokens"] == outcomes["none"].metrics["eval_tokens"]


def test_another_attention_is_refused(datasets: dict[str, kit.Packed], settings: Settings) -> None:
    with pytest.raises(ConfigError, match="attention: sdpa does not know"):
        quietly(settings(data=str(datasets["row"].folder), attention="sdpa", epochs=9))


def test_losses_of_documents_are_explained(datasets: dict[str, kit.Packed], settings: Settings, tmp_path: Path) -> None:
    config = TrainConfig.model_validate(settings(data=str(datasets["row"].folder), trainer={"max_steps": 2}))
    step = explain_step(config, tmp_path, 1)
    assert len(step.documents) > 4
    assert all(document.loss > 0 for document in step.documents if document.trained)
