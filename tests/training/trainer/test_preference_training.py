"""Trainings on packed preference pairs, whole, in this process: each step is what a plain reference says."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from packtrain.schemas.errors import ConfigError, ReferenceMismatchError
from packtrain.training.models.model import load_model
from packtrain.training.models.model_config import ModelConfig
from packtrain.training.trainer import heads, pair_reference
from packtrain.training.trainer.pair_reference import REFERENCE
from packtrain.training.trainer.train import train
from packtrain.training.trainer.train_config import PreferenceConfig

from tests.training.trainer.pair_trainings import METRICS, descend_pairs, documents_of, mean_terms
from tests.training.trainer.trainings import LLAMA, SGD, Outcome, Settings, initial, losses, quietly

LOSSES = ("dpo", "ipo", "simpo", "orpo", "reward")
DROPOUT = {
    "config": {
        "model_type": "gpt2", "vocab_size": 3200, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 256,
        "attn_pdrop": 0.0, "resid_pdrop": 0.2, "embd_pdrop": 0.0,
    }
}  # fmt: skip
LARGE = {"config": {**LLAMA, "initializer_range": 0.15}}
"""Weights so large that its documents differ."""


@pytest.fixture
def pair_settings(settings: Settings, pairs: Path) -> Settings:
    """`pair_settings(loss, **keys)`: a training on packed pairs, with plain gradient descent."""

    def make(loss: str = "dpo", **keys: Any) -> dict[str, Any]:
        trainer = {**SGD, "max_steps": 3, **keys.pop("trainer", {})}
        preference = {"loss": loss, "beta": 0.3, "gamma": 0.4, **keys.pop("preference", {})}
        return settings(**{"data": str(pairs), "model": LARGE, "preference": preference, "trainer": trainer, **keys})

    return make


def first_model(config: dict[str, Any]) -> Any:
    """The model of a training as it begins; of a reward model, transformers' own."""
    scores = config["preference"]["loss"] == "reward"
    return load_model(ModelConfig.model_validate(config["model"]), Path.cwd(), config["seed"], scores=scores)


def logged(outcome: Outcome) -> list[list[float]]:
    """The metrics of every step."""
    return [[entry[name] for name in METRICS if name in entry] for entry in outcome.log if "loss" in entry]


# The mean


@pytest.mark.parametrize("shares", ["none", "row"])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_step_is_the_mean_over_its_pairs_whatever_the_micro_batches(
    loss: str, shares: str, pair_settings: Settings, make_pairs: Callable[[str], Path]
) -> None:
    data = make_pairs(shares)
    config = pair_settings(loss, data=str(data), rows_per_device=1, export=True)
    model = first_model(config)
    expected, metrics = descend_pairs(config["preference"], model, data, 3)
    outcome = quietly(config)
    assert losses(outcome) == pytest.approx(expected, rel=1e-5)
    for found, step in zip(logged(outcome), metrics, strict=True):
        assert found == pytest.approx(step, rel=1e-4, abs=1e-5)
    trained = type(model).from_pretrained(outcome.export)
    moved = 0.0
    for (name, mine), theirs, first in zip(
        model.named_parameters(), trained.parameters(), first_model(config).parameters(), strict=True
    ):
        assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-5), name
        moved = max(moved, float((mine - first).detach().abs().max()))
    assert moved > 1e-3, "nothing was trained"


def test_rows_that_fill_up_a_step_are_no_pairs(pair_settings: Settings, pairs: Path) -> None:
    rows = sum(1 for _ in documents_of(pairs, rows_per_step=1))
    # So that a micro-batch of the last step is without a pair.
    size = next(size for size in (16, 20, 24, 28) if -rows % size > 4)
    config = pair_settings(rows_per_step=size, loader={"tail": "pad"}, trainer={"max_steps": -1})
    outcome = quietly(config)
    assert outcome.steps * size > rows
    expected, metrics = descend_pairs(
        config["preference"], first_model(config), pairs, outcome.steps, rows_per_step=size, tail="pad"
    )
    assert losses(outcome) == pytest.approx(expected, rel=1e-5)
    assert logged(outcome)[-1] == pytest.approx(metrics[-1], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("loss", ["dpo", "ipo", "reward"])
def test_fixed_shapes_change_no_loss(loss: str, pair_settings: Settings) -> None:
    plain, fixed = (losses(quietly(pair_settings(loss, loader={"static_shapes": static}))) for static in (False, True))
    assert fixed == pytest.approx(plain, rel=1e-5)


def test_losses_in_chunks_are_the_same(pair_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = losses(quietly(pair_settings()))
    monkeypatch.setattr(heads, "LOGITS_BYTES", 3200 * 4 * 20)
    monkeypatch.setattr(heads, "CHUNK_BYTES", 3200 * 4 * 7)
    sizes: list[int] = []
    chunk = heads.ChunkedHead._chunk

    def counted(head: Any, hidden: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        sizes.append(len(tokens))
        return chunk(head, hidden, tokens)

    monkeypatch.setattr(heads.ChunkedHead, "_chunk", counted)
    assert losses(quietly(pair_settings())) == pytest.approx(plain, rel=1e-6)
    assert len(sizes) > 20
    assert max(sizes) == 7


# The reference


def test_the_first_loss_is_ln_2_and_said(pair_settings: Settings) -> None:
    lines: list[str] = []
    trainer = train(pair_settings(probe=True, eval={}, trainer={"max_steps": 2}), say=lines.append)
    found = losses(Outcome(trainer))
    assert found[0] == pytest.approx(0.69314718, abs=1e-6)
    assert found[1] != pytest.approx(0.69314718, abs=1e-3)
    first = next(place for place, line in enumerate(lines) if line == "first loss proved: 0.6931472 = ln 2")
    computed = next(place for place, line in enumerate(lines) if "the reference of training rows is computed" in line)
    proved = next(place for place, line in enumerate(lines) if line.startswith("isolation proved"))
    assert computed < proved < first, "no pass over all rows by a model that leaks"


def test_how_far_the_reference_is_is_said(pair_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_reference, "SECONDS", 0.0)
    lines: list[str] = []
    trainer = train(pair_settings(trainer={"max_steps": 1}), say=lines.append)
    rows = len(trainer.loader.corpus)
    progress = [line for line in lines if line.startswith("the reference of training rows: ")]
    assert len(progress) > 1
    assert progress[-1] == f"the reference of training rows: {rows} of {rows} rows"


def change_reference(file: Path, change: Callable[[list[list[float]]], list[list[float]]]) -> None:
    """Write other log-probabilities of the same rows and weights."""
    with pa.OSFile(str(file), "rb") as source:
        table = pa.ipc.open_file(source).read_all()
    values = change(table["logps"].to_pylist())
    column = table.schema.get_field_index("logps")
    table = table.set_column(column, table.schema.field("logps"), pa.array(values, table.schema.field("logps").type))
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: [[value + 0.01 * (place % 2) for place, value in enumerate(row)] for row in rows],
        lambda rows: [row[::-1] for row in rows],
        lambda rows: [[0.0 for _ in row] for row in rows],
    ],
)
def test_another_reference_is_noticed_before_the_first_step(
    change: Any, pair_settings: Settings, tmp_path: Path
) -> None:
    config = pair_settings(trainer={"save_strategy": "steps", "save_steps": 1})
    quietly({**config, "trainer": {**config["trainer"], "max_steps": 1}})
    file = tmp_path / "out" / REFERENCE
    change_reference(file, change)
    shutil.rmtree(tmp_path / "out" / "checkpoint-1")
    with pytest.raises(
        ReferenceMismatchError, match=r"step is not taken: the first loss is .* ln 2 = 0.6931472"
    ) as raised:
        quietly(config)
    assert f"delete {file}" in str(raised.value)
    assert not list((tmp_path / "out").glob("checkpoint-*"))


def test_a_model_that_drops_values_is_not_compared_and_says_so(pair_settings: Settings) -> None:
    lines: list[str] = []
    trainer = train(pair_settings(model=DROPOUT), say=lines.append)
    assert losses(Outcome(trainer))[0] != pytest.approx(0.69314718, abs=1e-5)
    assert "the first loss is not compared with ln 2, because the model drops values at random" in lines


@pytest.mark.parametrize("loss", ["dpo", "ipo"])
def test_half_precision_has_its_own_tolerance(loss: str, pair_settings: Settings, tmp_path: Path) -> None:
    plain = losses(quietly(pair_settings(loss)))
    half = losses(quietly(pair_settings(loss, out=str(tmp_path / "half"), trainer={"bf16": True})))
    assert half == pytest.approx(plain, rel=3e-2)
    assert half != plain


def test_adapters_compare_with_the_model_without_them(pair_settings: Settings) -> None:
    pytest.importorskip("peft")
    outcome = quietly(pair_settings(lora={"r": 4}, trainer={"learning_rate": 5.0}))
    found = losses(outcome)
    assert found[0] == pytest.approx(0.69314718, abs=1e-6)
    assert found[-1] != pytest.approx(found[0], abs=1e-4)


# Evaluation


@pytest.mark.parametrize("loss", LOSSES)
def test_the_held_out_loss_is_every_pair_s_overall_and_by_source(
    loss: str, pair_settings: Settings, pairs: Path
) -> None:
    import pyarrow.parquet as pq
    from packtrain.training.packed_rows import PackedRows

    config = pair_settings(loss, rows_per_step=4, rows_per_device=4, eval={}, export=True, trainer={"max_steps": 1})
    outcome = quietly(config)
    first = first_model(config)
    trained = type(first).from_pretrained(outcome.export)
    rows = PackedRows(pairs, "holdout")
    assert len(rows) % 4, "a last batch that is filled up is what this is about"
    table = pq.read_table(pairs / "documents.parquet")
    source_of = dict(zip(table["doc_id"].to_pylist(), table["source"].to_pylist(), strict=True))
    by_source: dict[str, list[Any]] = {"first": [], "second": []}
    steps = documents_of(pairs, "holdout", rows_per_step=1, order="sequential")
    for index, documents in enumerate(steps):
        for doc_id, document in zip(rows.row(index).doc_ids.tolist(), documents, strict=True):
            by_source[source_of[doc_id]].append(document)
    settings = PreferenceConfig.model_validate(config["preference"])
    everything = [document for documents in by_source.values() for document in documents]
    names = ("loss", *METRICS[: 2 if loss == "reward" else 4])
    for suffix, documents in (("", everything), *((f"_{name}", part) for name, part in by_source.items())):
        assert len(documents) > 10
        with torch.no_grad():
            mean, metrics = mean_terms(settings, trained, first, documents)
        for name, expected in zip(names, [mean.item(), *metrics], strict=True):
            assert outcome.metrics[f"eval_{name}{suffix}"] == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert outcome.metrics["eval_pairs"] == len(everything) / 2


def test_only_some_held_out_rows(pair_settings: Settings, tmp_path: Path) -> None:
    some = quietly(pair_settings(eval={"rows": 2}, trainer={"max_steps": 1})).metrics
    everything = quietly(pair_settings(eval={}, out=str(tmp_path / "all"), trainer={"max_steps": 1})).metrics
    assert 0 < some["eval_pairs"] < everything["eval_pairs"]


# Going on


SAVED = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4, "optim": "adamw_torch", "learning_rate": 1e-3}


@pytest.mark.parametrize("loss", ["dpo", "simpo", "reward"])
def test_it_goes_on_bit_for_bit(loss: str, pair_settings: Settings, tmp_path: Path) -> None:
    config = pair_settings(loss, out=str(tmp_path / "whole"), eval={}, trainer=SAVED)
    whole = quietly(config)
    again = tmp_path / "again"
    shutil.copytree(tmp_path / "whole" / "checkpoint-2", again / "checkpoint-2")
    for file in (tmp_path / "whole").glob("reference*.arrow"):
        shutil.copy(file, again)
    outcome = quietly({**config, "out": str(again)})
    assert outcome.resumed_from == again / "checkpoint-2"
    assert losses(outcome) == losses(whole)
    assert outcome.metrics.items() >= {name: whole.metrics[name] for name in ("eval_loss", "eval_pairs")}.items()
    weights = [folder / "checkpoint-4" / "model.safetensors" for folder in (again, tmp_path / "whole")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_a_reference_is_never_computed_from_trained_weights(pair_settings: Settings, tmp_path: Path) -> None:
    config = pair_settings(trainer={**SAVED, "max_steps": 2})
    quietly(config)
    (tmp_path / "out" / REFERENCE).unlink()
    with pytest.raises(ConfigError, match=r"reference.arrow, and it cannot be computed from weights that are trained"):
        quietly({**config, "trainer": {**config["trainer"], "max_steps": 3}})


@pytest.mark.parametrize(
    ("change", "says"),
    [({"beta": 0.5}, r"preference: \{loss: dpo, beta: 0.3\}, .*beta: 0.5"), ({"loss": "ipo"}, "loss: ipo")],
)
def test_another_loss_is_not_gone_on_with(change: dict[str, Any], says: str, pair_settings: Settings) -> None:
    config = pair_settings(trainer={**SAVED, "max_steps": 2})
    quietly(config)
    config["trainer"]["max_steps"] = 3
    with pytest.raises(ConfigError, match=says):
        quietly({**config, "preference": {**config["preference"], **change}})


# Reward models


def test_a_reward_model_of_a_trained_model_is_exported_for_transformers(
    pair_settings: Settings, pairs: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForSequenceClassification

    initial({**pair_settings(), "seed": 5}).save_pretrained(tmp_path / "start")
    outcome = quietly(pair_settings("reward", model=str(tmp_path / "start"), export=True))
    model = AutoModelForSequenceClassification.from_pretrained(outcome.export)
    assert model.score.weight.shape == (1, 32)
    assert isinstance(model.config.pad_token_id, int)
    (first, _), (second, _) = next(documents_of(pairs))[:2]
    length = max(len(first), len(second))
    ids = torch.full((2, length), model.config.pad_token_id)
    mask = torch.zeros_like(ids)
    for place, document in enumerate((first, second)):
        ids[place, : len(document)] = document
        mask[place, : len(document)] = 1
    with torch.no_grad():
        together = model(ids, attention_mask=mask).logits[:, 0]
        alone = torch.stack([model(document[None]).logits[0, 0] for document in (first, second)])
    assert torch.allclose(together, alone, atol=1e-5)


def test_a_reward_model_with_adapters_trains_its_head(pair_settings: Settings) -> None:
    peft = pytest.importorskip("peft")
    outcome = quietly(pair_settings("reward", lora={"r": 4}, export=True))
    assert losses(outcome)[0] != losses(outcome)[-1]
    assert peft.PeftConfig.from_pretrained(outcome.export).task_type == "SEQ_CLS"
    from safetensors.torch import load_file

    assert any("score" in name for name in load_file(outcome.export / "adapter_model.safetensors"))


def test_a_model_without_a_head_for_single_positions_is_refused(pair_settings: Settings) -> None:
    sizes = {
        "vocab_size": 3200,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    with pytest.raises(ConfigError, match=r"Bert.* has no head named score over single positions"):
        quietly(pair_settings("reward", model={"config": {"model_type": "bert", **sizes}}))


# What is refused


def test_pairs_need_a_loss_of_pairs_and_no_other_rows_do(
    pair_settings: Settings, settings: Settings, pairs: Path, folder: Path
) -> None:
    with pytest.raises(ConfigError, match=r"holds preference pairs; set `preference: \{loss: dpo\}`"):
        quietly(settings(data=str(pairs)))
    with pytest.raises(ConfigError, match=r"has no preference pairs; pack sources of format preference"):
        quietly(pair_settings(data=str(folder)))
    with pytest.raises(ConfigError, match=r"has no preference pairs; pack sources of format preference"):
        quietly(pair_settings(eval={"data": str(folder), "split": "train"}))


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"loss_kernel": "chunked"}, "loss_kernel: chunked sums over tokens before pairs are known; take auto or none"),
        ({"loss_kernel": "liger"}, "loss_kernel: liger sums over tokens"),
        ({"preference": {"loss": "kto"}}, "preference.loss: kto is not supported: it takes single answers"),
        ({"preference": {"loss": "tdpo"}}, "it weighs tokens by a reference of each token"),
        ({"preference": {"beta": 0}}, "preference.beta"),
        ({"trainer": {"parallelism_config": {"cp_size": 2}}}, "trainer.parallelism_config cannot be set"),
    ],
)
def test_what_cannot_be_trained_says_why(keys: dict[str, Any], says: str, pair_settings: Settings) -> None:
    with pytest.raises(ConfigError, match=says):
        quietly(pair_settings(**keys))


def test_a_loss_is_explained_by_tokens_only(pair_settings: Settings) -> None:
    from packtrain.training.trainer.explain import explain_step
    from packtrain.training.trainer.train_config import TrainConfig

    config = TrainConfig.model_validate(pair_settings())
    with pytest.raises(ConfigError, match="losses of tokens"):
        explain_step(config, Path.cwd(), 1)


@pytest.mark.parametrize(("loss", "warns"), [("orpo", False), ("ipo", False), ("simpo", False), ("reward", False)])
def test_first_losses_of_pairs_are_no_reason_to_warn(
    loss: str, warns: bool, pair_settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    small = {"config": LLAMA}
    with caplog.at_level(logging.WARNING, logger="packtrain"):
        quietly(pair_settings(loss, model=small, trainer={"max_steps": 1}, preference={"beta": 0.1}))
    assert ("guessing" in caplog.text) == warns
