"""One step of the trainers that need no environment of their own, on the first two rows: the loss of their documents,
each computed alone.
"""

from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from packtrain.training import PackedGuard, PackedLoader, collate, use_packed
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from trl import SFTConfig, SFTTrainer

from tests.training.foreign.conftest import Documented
from tests.training.trainer.trainings import document_losses, losses, quietly, summed

STEP: dict[str, Any] = {
    "max_steps": 1, "per_device_train_batch_size": 2, "train_sampling_strategy": "sequential", "learning_rate": 1e-9,
    "logging_steps": 1, "report_to": [], "save_strategy": "no", "use_cpu": True, "bf16": False, "disable_tqdm": True,
}  # fmt: skip


def load(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder)


def first_rows(data: Path) -> dict[str, Any]:
    return dict(next(iter(PackedLoader(data, rows_per_step=2, order="sequential"))))


@pytest.fixture(scope="module")
def alone(two_sources: Path, tiny_model: Path) -> float:
    """The loss of the documents of the first two rows, each computed alone."""
    with torch.no_grad():
        total, weight = summed(document_losses(load(tiny_model).eval(), first_rows(two_sources)))
    return float(total) / weight


def by_trl(data: Path, model: Path, out: Path) -> float:
    arguments = SFTConfig(str(out), padding_free=True, max_length=None, **STEP)
    rows = datasets.load_from_disk(str(data))["train"]
    trainer = SFTTrainer(load(model), args=arguments, train_dataset=rows, callbacks=[PackedGuard(data)])
    trainer.train()
    return float(trainer.state.log_history[0]["loss"])


def by_transformers(data: Path, model: Path, out: Path) -> float:
    arguments = TrainingArguments(str(out), remove_unused_columns=False, **STEP)
    rows = datasets.load_from_disk(str(data))["train"]
    callbacks = [PackedGuard(data)]
    trainer = Trainer(load(model), arguments, train_dataset=rows, data_collator=collate, callbacks=callbacks)
    trainer.train()
    return float(trainer.state.log_history[0]["loss"])


def by_packtrain(data: Path, model: Path, out: Path) -> float:
    trainer = {name: value for name, value in STEP.items() if not name.startswith(("per_device", "train_sampling"))}
    keys = {"rows_per_step": 2, "loader": {"order": "sequential"}, "export": False, "trainer": trainer}
    return losses(quietly({"out": str(out), "model": {"path": str(model)}, "data": str(data), **keys}))[0]


def by_a_loop(data: Path, model: Path, out: Path) -> float:
    network = load(model)
    use_packed(network)
    return float(network(**first_rows(data)).loss.detach())


BY_TRAINER = {
    "TRL": by_trl,
    "transformers": by_transformers,
    "packtrain train": by_packtrain,
    "your own loop": by_a_loop,
}


@pytest.mark.parametrize("trainer", BY_TRAINER)
def test_it_is_that_of_documents_alone(
    trainer: str, alone: float, documented: Documented, two_sources: Path, tiny_model: Path, tmp_path: Path
) -> None:
    loss = BY_TRAINER[trainer](two_sources, tiny_model, tmp_path / "out")
    documented(trainer, loss, alone)
