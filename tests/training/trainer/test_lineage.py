"""The dataset's hash is in the configuration that a log shows, in checkpoints and in the finished model."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
from packtrain.pipeline.dataset.open_dataset import open_dataset
from packtrain.training import PackedGuard, PackedLoader, collate, guard
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

from tests import kit
from tests.training.trainer.trainings import LLAMA, Settings, quietly

KEY = "packtrain/dataset"
TAG = "model_config/text_summary"


def logged_model(logs: Path) -> dict[str, Any]:
    """The model's configuration, as TensorBoard shows it."""
    for events in logs.rglob("events.*"):
        log = EventAccumulator(str(events))
        log.Reload()
        for tensor in (
            log.Tensors("model_config/text_summary") if "model_config/text_summary" in log.Tags()["tensors"] else ()
        ):
            return dict(json.loads(tensor.tensor_proto.string_val[0]))
    raise AssertionError(f"no log in {logs}")


def test_in_a_training_by_packtrain(
    settings: Settings, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "logs"))
    more = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1, "report_to": ["tensorboard"]}
    outcome = quietly(settings(export=True, trainer=more))
    wanted = open_dataset(folder).manifest.hash
    assert logged_model(tmp_path / "logs")[KEY] == wanted
    for place in (outcome.out / "checkpoint-1", outcome.export):
        assert json.loads((place / "config.json").read_text())[KEY] == wanted
    assert json.loads((outcome.out / "checkpoint-2" / "packtrain.json").read_text())["loader"][KEY] == wanted
    again = quietly(settings(trainer={**more, "max_steps": 3}))
    assert again.resumed_from is not None


@pytest.mark.parametrize("how", ["callback", "guard(trainer)", "guard(model)"])
def test_by_a_guard(how: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "logs"))
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**LLAMA))
    if how == "guard(model)":
        guard(model, folder)
    trainer = Trainer(
        model,
        TrainingArguments(
            str(tmp_path / "out"), max_steps=1, per_device_train_batch_size=1, use_cpu=True, report_to=["tensorboard"],
            disable_tqdm=True, remove_unused_columns=False,
        ),
        train_dataset=datasets.load_from_disk(str(folder)),
        data_collator=collate,
        callbacks=[PackedGuard(folder)] if how == "callback" else [],
    )  # fmt: skip
    if how == "guard(trainer)":
        guard(trainer, folder)
    trainer.train()
    wanted = open_dataset(folder).manifest.hash
    assert logged_model(tmp_path / "logs")[KEY] == wanted
    saved = json.loads((tmp_path / "out" / "checkpoint-1" / "config.json").read_text())
    assert saved[KEY] == wanted
    assert getattr(AutoConfig.from_pretrained(tmp_path / "out" / "checkpoint-1"), KEY) == wanted


def test_in_the_state_of_a_loader(tmp_path: Path) -> None:
    """Which also fits a dataset with the same rows and another manifest."""
    kit.write(tmp_path / "texts.jsonl", kit.corpus("texts", 40))
    folders = []
    for name in ("one", "other"):
        source = kit.source("texts", name=name)
        folders.append(kit.packed(kit.configure(tmp_path, source, out=str(tmp_path / name))).folder)
    one, other = (PackedLoader(folder, rows_per_step=1) for folder in folders)
    assert one.lineage == {KEY: open_dataset(folders[0]).manifest.hash}
    assert one.lineage != other.lineage
    iterator = iter(one)
    next(iterator)
    state = one.state_dict()
    assert state[KEY] == one.lineage[KEY]
    other.load_state_dict(state)
    assert other.state_dict() == {**state, **other.lineage}
