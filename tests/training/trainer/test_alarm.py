"""Warnings at the beginning of a training: given where something is wrong, silent where nothing is."""

import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from packtrain.training import PackedLoader  # noqa: E402
from packtrain.training.trainer.alarm import Alarm, Alone, documents_alone, some_documents  # noqa: E402
from packtrain.training.trainer.forward import Forward  # noqa: E402
from packtrain.training.trainer.trainer import PackedTrainer  # noqa: E402

from tests.training.trainer.tiny_models import make  # noqa: E402

VOCABULARY = 4096


def small(**changes: Any) -> Any:
    """A model with transformers' own initial weights: it guesses."""
    model = make("Llama", vocab_size=VOCABULARY, attention="sdpa", **changes)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.div_(6)
    return model


def test_documents_alone_have_the_loss_that_transformers_computes(folder: Path) -> None:
    model = make("Llama", vocab_size=VOCABULARY)
    documents = some_documents(PackedLoader(folder, rows_per_step=1).corpus, 6)
    assert len(documents) == 6
    for padded in (False, True):
        found = documents_alone(model, documents, Forward(model).logits, padded=padded)
        for document, total, count in zip(documents, found.sums, found.counts, strict=True):
            ids = torch.from_numpy(document.input_ids.copy()).long()[None]
            labels = torch.from_numpy(document.labels.copy()).long()[None]
            assert total / count == pytest.approx(model(input_ids=ids, labels=labels).loss.item(), rel=1e-5)


def test_the_error_is_that_of_a_mean_over_documents() -> None:
    alone = Alone((2.0, 4.0, 6.0, 8.0), (2, 2, 2, 2))
    assert alone.loss == 2.5
    means = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert alone.error == pytest.approx(float(means.std() / 2))
    assert math.isinf(Alone((1.0,), (1,)).error)
    assert math.isnan(Alone((), ()).loss)


def train(folder: Path, out: Path, model: Any, *, steps: int = 6, **changes: Any) -> Alarm:
    """A real training with the alarm, and its findings."""
    said: list[str] = []
    arguments = transformers.TrainingArguments(
        str(out), max_steps=steps, logging_steps=1, save_strategy="no", report_to=[], use_cpu=True, **changes
    )
    trainer = PackedTrainer(model, arguments, data=folder, rows_per_step=4, probe=False, say=None)
    for callback in [one for one in trainer.callback_handler.callbacks if isinstance(one, Alarm)]:
        trainer.remove_callback(callback)
    alarm = Alarm.of(trainer)
    alarm.say = said.append
    trainer.add_callback(alarm)
    trainer.train()
    assert said == [finding.message for finding in alarm.findings]
    assert alarm.alone is not None
    assert alarm._norms or alarm.findings
    return alarm


def test_a_sound_training_is_not_warned_of(folder: Path, tmp_path: Path) -> None:
    alarm = train(folder, tmp_path, small(), learning_rate=1e-3)
    assert alarm.findings == []
    assert alarm.alone is not None
    assert alarm.alone.loss == pytest.approx(math.log(VOCABULARY), rel=0.05)


def test_a_learning_rate_that_is_far_too_high(folder: Path, tmp_path: Path) -> None:
    alarm = train(folder, tmp_path, small(), steps=8, learning_rate=3.0, lr_scheduler_type="constant")
    assert {finding.kind for finding in alarm.findings} & {"rising", "steep", "not_finite"}
    assert "learning rate" in alarm.findings[0].message


def test_weights_that_know_less_than_a_guess(folder: Path, tmp_path: Path) -> None:
    model = small(tie_word_embeddings=False)
    with torch.no_grad():
        model.lm_head.weight.mul_(100)
    alarm = train(folder, tmp_path, model, steps=1, learning_rate=1e-5)
    assert [finding.kind for finding in alarm.findings] == ["worse_than_guessing"]
    assert "another tokenizer" in alarm.findings[0].message


def test_a_first_loss_unlike_that_of_documents_alone(folder: Path, tmp_path: Path) -> None:
    """As of a leak, or of other data: here the weights change after the documents were measured."""

    class Change(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            with torch.no_grad():
                model.lm_head.weight.mul_(60)

    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=1, logging_steps=1, save_strategy="no", report_to=[], use_cpu=True
    )
    model = small(tie_word_embeddings=False)
    trainer = PackedTrainer(model, arguments, data=folder, rows_per_step=4, probe=False, say=None)
    alarm = Alarm.of(trainer)
    trainer.add_callback(alarm)
    trainer.add_callback(Change())
    trainer.train()
    assert [finding.kind for finding in alarm.findings] == ["unlike_alone"]
    assert "in each other's way" in alarm.findings[0].message


ALONE = Alone((6.0, 6.2, 5.8), (2, 2, 2))


def lines(*logs: dict[str, float], alone: Alone = ALONE) -> list[str]:
    """The kinds of findings, for these lines of a log, of steps 1, 2, …"""
    alarm = Alarm(lambda: alone, VOCABULARY, say=lambda text: None)
    state = transformers.TrainerState()
    alarm.on_train_begin(None, state, None)
    for log in logs:
        state.global_step += 1
        alarm.on_log(None, state, None, logs=log)
    return [finding.kind for finding in alarm.findings]


def test_lines_one_by_one() -> None:
    assert lines({"loss": 3.1, "grad_norm": 1.2}, {"loss": 2.8, "grad_norm": 1.0}, {"eval_loss": 9.0}) == []
    assert lines({"loss": 1.9}) == ["unlike_alone"]
    assert lines({"loss": 3.0}, {"loss": 5.2}, {"loss": 6.0}) == ["rising"]
    assert lines({"loss": math.nan}) == ["not_finite"]
    assert lines({"loss": 0.0, "grad_norm": 0.0}) == ["nothing_trained", "no_gradient"]
    assert lines({"loss": 3.0, "grad_norm": 0.9}, {"loss": 3.0, "grad_norm": 40.0}) == ["steep"]
    assert lines({"loss": 3.0, "grad_norm": math.inf}) == ["norm_not_finite"]
    assert lines(*[{"loss": 3.0}] * 60, {"loss": 9.0}) == [], "only early steps are looked at"
    assert lines({"loss": 3.0}, alone=Alone((), ())) == ["alone_nan"]
    assert lines({"loss": 0.001}, alone=Alone((0.001, 0.001), (1, 1))) == ["known_already"]
    # Documents that differ much say little about what to expect.
    assert lines({"loss": 4.5}, alone=Alone((1.0, 6.0), (1, 1))) == []
