"""Trainings of tiny models, whole, in this process: each step is what a plain reference says."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from packtrain.schemas.errors import ConfigError, DivergedError, InputError, LeakError  # noqa: E402
from packtrain.training import PackedLoader  # noqa: E402
from packtrain.training.trainer.loss import Forward  # noqa: E402
from packtrain.training.trainer.run import train  # noqa: E402
from packtrain.training.trainer.trainer import PackedTrainer  # noqa: E402

from tests.training.trainer.trainings import SGD, Settings, initial, losses, quietly  # noqa: E402

# The mean


@pytest.mark.parametrize("rows_per_device", [1, 4])
def test_a_step_is_the_global_mean_whatever_the_micro_batches(
    settings: Settings, folder: Path, descend: Callable[..., list[float]], rows_per_device: int
) -> None:
    config = settings(rows_per_device=rows_per_device, trainer={**SGD, "max_steps": 3}, loss_kernel="none")
    model = initial(config)
    expected = descend(model, folder, 3, rows_per_step=4, seed=3, rate=0.5)
    outcome = quietly({**config, "export": True})
    assert losses(outcome) == pytest.approx(expected, rel=1e-6)
    from transformers import AutoModelForCausalLM

    found = AutoModelForCausalLM.from_pretrained(outcome.export)
    moved = 0.0
    for (name, mine), theirs, first in zip(
        model.named_parameters(), found.parameters(), initial(config).parameters(), strict=True
    ):
        assert torch.allclose(mine, theirs, rtol=1e-5, atol=1e-6), name
        moved = max(moved, float((mine - first).detach().abs().max()))
    assert moved > 1e-3, "nothing was trained"


@pytest.mark.slow
def test_batches_without_a_trained_token_neither_count_nor_spoil_anything(
    settings: Settings, folder: Path, descend: Callable[..., list[float]]
) -> None:
    config = settings(rows_per_step=16, loader={"tail": "pad"}, trainer={**SGD, "max_steps": -1})
    model = initial(config)
    outcome = quietly(config)
    rows = outcome.steps * 16
    expected = descend(model, folder, outcome.steps, rows_per_step=16, seed=3, rate=0.5, tail="pad")
    loader = PackedLoader(folder, rows_per_step=16)
    assert rows - loader.total_rows > 4, "no micro-batch of the last step is without a trained token"
    assert losses(outcome) == pytest.approx(expected, rel=1e-6)


def test_a_mixture_of_experts_adds_the_mean_of_its_auxiliary_losses(settings: Settings) -> None:
    experts = {
        "model_type": "mixtral", "vocab_size": 3200, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2,
        "output_router_logits": True, "router_aux_loss_coef": 0.5, "max_position_embeddings": 256,
    }  # fmt: skip
    once = {"max_steps": 1}
    found = losses(quietly(settings(model={"config": experts}, rows_per_device=1, trainer=once)))
    plain = losses(
        quietly(settings(model={"config": {**experts, "router_aux_loss_coef": 0.0}}, rows_per_device=1, trainer=once))
    )
    # The auxiliary loss of one even batch is top_k = 2: times 0.5, once, and not once for each of four batches.
    assert found[0] - plain[0] == pytest.approx(1.0, rel=0.1)


# Settings of transformers


@pytest.mark.slow
def test_it_trains_in_bf16_and_in_another_order(settings: Settings) -> None:
    order = {"prefetch": 0, "order": "blocks", "balance": {"block": 8, "group": 4}}
    found = losses(quietly(settings(loader=order, trainer={"bf16": True, "learning_rate": 3e-3})))
    assert found[-1] < found[0] - 0.05


@pytest.mark.slow
def test_checkpointing_and_plain_batches_of_one_shape_give_the_same_losses(settings: Settings) -> None:
    plain = losses(quietly(settings()))
    again = losses(quietly(settings(trainer={"gradient_checkpointing": True})))
    fixed = losses(quietly(settings(loader={"static_shapes": True})))
    assert again == pytest.approx(plain, rel=1e-6)
    assert fixed == pytest.approx(plain, rel=1e-5)


@pytest.mark.slow
def test_it_trains_compiled(settings: Settings) -> None:
    small = {"model": {"config": {**settings()["model"]["config"], "num_hidden_layers": 1}}, "rows_per_device": 4}
    plain = losses(quietly(settings(**small, trainer={"max_steps": 2})))
    keys = {"max_steps": 2, "torch_compile": True, "torch_compile_backend": "eager"}
    assert losses(quietly(settings(**small, trainer=keys))) == pytest.approx(plain, rel=1e-4)


# Evaluation


def test_the_held_out_loss_is_every_token_s_overall_and_by_source(
    settings: Settings, two_sources: Path, document_losses: Callable[..., Any]
) -> None:
    import pyarrow.parquet as pq
    from packtrain.training.batch import flatten
    from packtrain.training.rows import PackedRows

    config = settings(data=str(two_sources), eval={"rows_per_device": 3}, export=True, trainer={"max_steps": 1})
    outcome = quietly(config)
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(outcome.export)
    table = pq.read_table(two_sources / "documents.parquet")
    source = dict(zip(table.column("doc_id").to_pylist(), table.column("source").to_pylist(), strict=True))
    rows = PackedRows(two_sources, "holdout")
    assert len(rows) % 3, "a last batch that is filled up is what this is about"
    sums: dict[str, list[float]] = {"chats": [0, 0], "texts": [0, 0]}
    for index in range(len(rows)):
        row = rows.row(index)
        for doc, (loss, trained) in zip(row.doc_ids.tolist(), document_losses(model, flatten([row])), strict=True):
            sums[source[doc]][0] += loss.item()
            sums[source[doc]][1] += trained
    assert all(trained > 50 for _, trained in sums.values())
    for name, (loss, trained) in sums.items():
        assert outcome.metrics[f"eval_loss_{name}"] == pytest.approx(loss / trained, rel=1e-5)
    total, trained = (sum(one) for one in zip(*sums.values(), strict=True))
    assert outcome.metrics["eval_loss"] == pytest.approx(total / trained, rel=1e-5)
    assert outcome.metrics["eval_tokens"] == trained


def test_it_evaluates_every_so_many_steps_and_leaves_the_training_as_it_is(
    settings: Settings, two_sources: Path
) -> None:
    watched = quietly(settings(data=str(two_sources), eval={"every": 4, "rows": 2}))
    assert [entry["step"] for entry in watched.log if "eval_loss" in entry] == [4, 6]
    assert losses(watched) == losses(quietly(settings(data=str(two_sources))))


# The end


def test_model_and_checkpoints_load_with_tokenizer_and_template(settings: Settings, two_sources: Path) -> None:
    from packtrain.pipeline import demo
    from packtrain.training.generate import find_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    saved = {"max_steps": 2, "save_strategy": "steps", "save_steps": 2}
    outcome = quietly(settings(data=str(two_sources), export=True, trainer=saved))
    assert outcome.export is not None
    own = AutoTokenizer.from_pretrained(str(Path(demo.__file__).parent / "tokenizer"))
    expected = own.apply_chat_template([{"role": "user", "content": "say 1"}], add_generation_prompt=True)
    for folder in (outcome.export, outcome.out / "checkpoint-2"):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert (
            tokenizer.apply_chat_template([{"role": "user", "content": "say 1"}], add_generation_prompt=True)
            == expected
        )
        assert find_model(folder).vocabulary == 3200
    model = AutoModelForCausalLM.from_pretrained(outcome.export)
    assert model.config.use_cache is True
    assert model.config._attn_implementation in ("sdpa", "eager")
    assert not (outcome.export / "training_args.bin").exists()


def test_data_of_another_vocabulary_is_refused_with_the_reason(
    settings: Settings, two_sources: Path, folder: Path
) -> None:
    def highest(data: Path) -> int:
        return max(int(batch["input_ids"].max()) for batch in PackedLoader(data, rows_per_step=1))

    low, high = sorted((two_sources, folder), key=highest)
    assert highest(low) < highest(high)
    held_out = {"data": str(high), "split": "train"}
    for data, vocabulary, given in ((high, 100, None), (low, highest(low) + 1, held_out)):
        model = {"config": {**settings()["model"]["config"], "vocab_size": vocabulary}}
        with pytest.raises(InputError, match=r"but the model has embeddings for .*vocab_size: at least [\d,]+"):
            quietly(settings(model=model, data=str(data), eval=given, trainer={"max_steps": 1}))


def test_documents_longer_than_the_models_positions(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    table = {"config": {"model_type": "gpt2", "vocab_size": 3200, "n_embd": 16, "n_layer": 1, "n_head": 2,
                        "n_positions": 50, "attn_pdrop": 0.0}}  # fmt: skip
    with pytest.raises(InputError, match=r"a document of [\d,]+ tokens, .* it has embeddings for 50 positions"):
        quietly(settings(model=table, rows_per_step=16, trainer={"max_steps": 2}))
    rotary = {"config": {**settings()["model"]["config"], "max_position_embeddings": 50}}
    with caplog.at_level(logging.WARNING, logger="packtrain"):
        quietly(settings(model=rotary, rows_per_step=16, trainer={"max_steps": 2}))
    assert caplog.text.count("longer than the model's max_position_embeddings (50)") == 1


def test_rotary_embeddings_that_stretch_with_the_longest_document(settings: Settings, make_packed: Any) -> None:
    def model(limit: int, kind: str) -> dict[str, Any]:
        rope = {"rope_type": kind, "factor": 2.0, "rope_theta": 1e4, "original_max_position_embeddings": 50}
        return {"config": {**settings()["model"]["config"], "max_position_embeddings": limit, "rope_parameters": rope}}

    refused = r"document of 96 tokens, more than the model takes: dynamic rotary .* longer than 50 .*max_length: 50"
    for keys in ({}, {"probe": False}):
        with pytest.raises(InputError, match=refused):
            quietly(settings(model=model(50, "dynamic"), trainer={"max_steps": 1}, **keys))
    lines: list[str] = []
    train(settings(model=model(96, "dynamic"), trainer={"max_steps": 1}), say=lines.append)
    assert any("at length" in line for line in lines)
    quietly(settings(model=model(50, "yarn"), trainer={"max_steps": 1}))
    padded = {"data": str(make_packed("three", 3)), "rows_per_step": 1, "loader": {"static_shapes": True}}
    with pytest.raises(LeakError, match=r"lengths is a document of [\d,]+ tokens"):
        quietly(settings(model=model(96, "dynamic"), trainer={"max_steps": 1}, **padded))


def test_a_loss_that_is_no_number_ends_the_training_and_keeps_what_is_whole(settings: Settings, tmp_path: Path) -> None:
    keys = {**SGD, "learning_rate": 1e30, "save_strategy": "steps", "save_steps": 1, "save_total_limit": 1}
    with pytest.raises(DivergedError, match=r"not a number at step 2.*trainer.learning_rate"):
        quietly(settings(trainer=keys, export=True))
    assert [path.name for path in (tmp_path / "out").glob("*") if path.name.startswith("checkpoint")] == [
        "checkpoint-1"
    ]


def test_places_are_looked_at_before_the_training(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "a file").touch()
    with pytest.raises(ConfigError, match=r"out: .*a file cannot be written as a folder"):
        quietly(settings(out=str(tmp_path / "a file")))
    said: list[str] = []
    with pytest.raises(ConfigError, match="tokenizer: there is no folder"):
        train(settings(tokenizer="nowhere"), say=said.append)
    own = str(tmp_path / "out" / "model")
    with pytest.raises(ConfigError, match="would overwrite the one that training starts from"):
        train(settings(model=own, export=True), say=said.append)
    assert not said


def test_memory_that_runs_out_is_no_traceback(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Forward, "loss", lambda *_, **__: torch.empty(1 << 50))
    with pytest.raises(ConfigError, match=r"memory ran out in a batch of 2 rows.*\(.*\)\. Set rows_per_device: 1, "):
        quietly(settings())


# From Python


@pytest.mark.slow
def test_a_trainer_of_one_s_own(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=3200, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    )
    arguments = TrainingArguments(str(tmp_path), learning_rate=1e-2, logging_steps=2, report_to=[], save_strategy="no")
    trainer = PackedTrainer(model, arguments, data=folder, rows_per_step=4, rows_per_device=2)
    assert arguments.gradient_accumulation_steps == 1, "the person's own arguments were changed"
    result = trainer.train()
    assert result.global_step == trainer.loader.total_rows // 4
    history = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert history[-1] < history[0]
    again = trainer.train()  # from the beginning of the data, not from its end
    assert again.global_step == result.global_step
    assert "grad norm" in capsys.readouterr().out
