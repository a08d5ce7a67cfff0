"""`explain-loss`: the documents of a step, by the losses that a checkpoint before it gives them."""

import json
from pathlib import Path
from typing import Any

import pytest
from packtrain.schemas.errors import ConfigError, InputError
from packtrain.training import PackedLoader
from packtrain.training.trainer.explain import StepLoss, explain_step
from packtrain.training.trainer.train_config import TrainConfig

from tests import kit
from tests.training.trainer.trainings import Settings, document_losses, losses, quietly

SAVED = {"save_strategy": "steps", "save_steps": 1, "max_steps": 3, "learning_rate": 1e-2}


def explained(config: dict[str, Any], step: int) -> StepLoss:
    return explain_step(TrainConfig.model_validate(config), Path.cwd(), step)


def test_a_step_is_that_of_the_training_document_by_document(settings: Settings, two_sources: Path) -> None:
    config = settings(data=str(two_sources), trainer=SAVED)
    logged = losses(quietly(config))
    for step, checkpoint in ((1, ""), (3, "checkpoint-2")):
        found = explained(config, step)
        assert Path(found.checkpoint).name == checkpoint
        assert found.loss == pytest.approx(logged[step - 1], rel=1e-5)  # the weights are those before the step
        assert sum(one.share for one in found.documents) == pytest.approx(1)
        assert [one.loss for one in found.documents] == sorted((one.loss for one in found.documents), reverse=True)
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(found.checkpoint)
    loader = PackedLoader(two_sources, rows_per_step=4, seed=3, rank=0, world_size=1)
    documents = loader.explain(2)
    batch = [one for _, one in zip(range(3), loader, strict=False)][-1]
    expected = sorted(loss.item() / trained for loss, trained in document_losses(model, batch))
    assert sorted(one.loss for one in found.documents) == pytest.approx(expected, rel=1e-5)
    assert {one.id for one in found.documents} <= {one.id for one in documents}
    shown = kit.cli("explain-loss", kit.saved(config), "--step", 3).out
    assert shown.startswith(f"step 3 by {found.checkpoint}: loss {found.loss:.4f}; ")
    assert shown.splitlines()[-1].endswith(f"--id {found.documents[0].id}")


def test_adapters_are_put_on_their_model(settings: Settings) -> None:
    pytest.importorskip("peft")
    config = settings(lora={"r": 4}, trainer=SAVED)
    logged = losses(quietly(config))
    for step in (1, 2):
        assert explained(config, step).loss == pytest.approx(logged[step - 1], rel=1e-5)


def test_what_cannot_be_explained(settings: Settings) -> None:
    config = settings(trainer=SAVED)
    with pytest.raises(InputError, match="no step 1,000"):
        explained(config, 1000)
    quietly(config)
    weights = Path(config["out"]) / "checkpoint-2" / "model.safetensors"
    marker = weights.parent / "packtrain.json"
    state = json.loads(marker.read_text())
    state["files"].pop(weights.name)
    marker.write_text(json.dumps(state))
    weights.rename(weights.with_name("other.bin"))
    with pytest.raises(ConfigError, match="no whole weights"):
        explained(config, 3)
