"""Trainings of tiny models, whole, in this process: each step is what a plain reference says."""

import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from packtrain.schemas.errors import ConfigError, InputError, LeakError, PacktrainError
from packtrain.training import PackedLoader
from packtrain.training.attention import kernels
from packtrain.training.trainer.loss import Forward
from packtrain.training.trainer.train import train
from packtrain.training.trainer.trainer import PackedTrainer
from transformers.models.llama.modeling_llama import LlamaMLP

from tests.support.varlen_kernel import CALLS, flash_on_cpu
from tests.training.conftest import MakePacked
from tests.training.trainer.trainings import LLAMA, SGD, Settings, descend, document_losses, initial, losses, quietly

__all__ = ["flash_on_cpu"]  # a fixture


@pytest.fixture(scope="module")
def few(make_packed: MakePacked) -> Path:
    """Some twenty rows."""
    return make_packed("few", 30, max_length=96)


# The mean


def test_a_step_is_the_global_mean_whatever_the_micro_batches(settings: Settings, folder: Path) -> None:
    config = settings(rows_per_device=1, trainer={**SGD, "max_steps": 3}, loss_kernel="none")
    model = initial(config)
    expected = descend(model, folder, 3)
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


def test_batches_without_a_trained_token_neither_count_nor_spoil_anything(settings: Settings, few: Path) -> None:
    config = settings(data=str(few), rows_per_step=16, loader={"tail": "pad"}, trainer={**SGD, "max_steps": -1})
    model = initial(config)
    outcome = quietly(config)
    expected = descend(model, few, outcome.steps, rows_per_step=16, tail="pad")
    filled = outcome.steps * 16 - PackedLoader(few, rows_per_step=16).total_rows
    assert filled > 4, "no micro-batch of the last step is without a trained token"
    assert losses(outcome) == pytest.approx(expected, rel=1e-6)


EXPERTS = {
    "model_type": "mixtral", "vocab_size": 3200, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2,
    "output_router_logits": True, "router_aux_loss_coef": 0.5, "max_position_embeddings": 256,
}  # fmt: skip


def test_a_mixture_of_experts_adds_the_mean_of_its_auxiliary_losses(settings: Settings) -> None:
    found, plain = (
        losses(quietly(settings(model={"config": config}, rows_per_device=1, trainer={"max_steps": 1})))
        for config in (EXPERTS, {**EXPERTS, "router_aux_loss_coef": 0.0})
    )
    # The auxiliary loss of one even batch is top_k = 2: times 0.5, once, and not once for each of four batches.
    assert found[0] - plain[0] == pytest.approx(1.0, rel=0.1)


# Other ways


def test_adapters_train_go_on_and_are_exported(settings: Settings, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    saved = {"save_strategy": "steps", "save_steps": 3, "learning_rate": 1e-2}
    config = settings(lora={"r": 4}, trainer=saved, export=True)
    whole = quietly(config)
    assert losses(whole)[-1] < losses(whole)[0]
    shutil.copytree(whole.out / "checkpoint-3", tmp_path / "again" / "checkpoint-3")
    again = quietly({**config, "out": str(tmp_path / "again")})
    assert losses(again) == losses(whole)
    assert whole.export is not None
    assert not (whole.export / "model.safetensors").exists()
    config = peft.PeftConfig.from_pretrained(whole.export)
    assert (config.r, config.task_type) == (4, "CAUSAL_LM")


@pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
def test_adapters_on_weights_of_four_bits(settings: Settings, tmp_path: Path) -> None:
    initial(settings()).save_pretrained(tmp_path / "start")
    four_bits = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    model = {"path": str(tmp_path / "start"), "quantization": four_bits}
    trainer = {"learning_rate": 1e-2, "gradient_checkpointing": True}
    found = losses(quietly(settings(model=model, lora={"r": 4}, probe=True, trainer=trainer)))
    plain = losses(quietly(settings(model=str(tmp_path / "start"), trainer={"max_steps": 1})))
    assert found[0] == pytest.approx(plain[0], rel=1e-2)
    assert found[0] != plain[0]
    assert found[-1] < found[0]


@pytest.mark.slow
def test_what_changes_the_computation_changes_no_loss(settings: Settings) -> None:
    small = {"model": {"config": {**LLAMA, "num_hidden_layers": 1}}, "rows_per_device": 4}
    compiled = {"torch_compile": True, "torch_compile_backend": "eager", "max_steps": 1}

    def found(trainer: dict[str, Any], **keys: Any) -> list[float]:
        return losses(quietly(settings(**small, **keys, trainer={"max_steps": 2, **trainer})))

    plain = found({}, probe=True)
    assert found({"gradient_checkpointing": True}, probe=True) == pytest.approx(plain, rel=1e-6)
    fixed = {"loader": {"static_shapes": True}}
    assert found({}, **fixed) == pytest.approx(plain, rel=1e-5)
    assert found(compiled, **fixed) == pytest.approx(plain[:1], rel=1e-4)
    assert found({"bf16": True}, probe=True) == pytest.approx(plain, rel=1e-2)


# Evaluation


def test_the_held_out_loss_is_every_token_s_overall_and_by_source(settings: Settings, two_sources: Path) -> None:
    import pyarrow.parquet as pq
    from packtrain.training.batch import flatten
    from packtrain.training.packed_rows import PackedRows

    config = settings(
        data=str(two_sources), rows_per_step=3, rows_per_device=3, eval={}, export=True, trainer={"max_steps": 1}
    )
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
    from packtrain.training.models.generate import find_model
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
        model = {"config": {**LLAMA, "vocab_size": vocabulary}}
        with pytest.raises(InputError, match=r"but the model has embeddings for .*vocab_size: at least [\d,]+"):
            quietly(settings(model=model, data=str(data), eval=given, trainer={"max_steps": 1}))


# What is refused


def test_a_model_that_leaks_is_not_trained(settings: Settings) -> None:
    sinks = {
        "model_type": "gpt_oss", "vocab_size": 3200, "hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 2,
        "num_experts_per_tok": 1, "layer_types": ["full_attention", "full_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }  # fmt: skip
    config = settings(model={"config": sinks}, attention="eager", probe=True, trainer={"max_steps": 1})
    with pytest.raises(LeakError, match=r"GptOssForCausalLM with attention eager does not keep .* apart"):
        quietly(config)
    assert len(losses(quietly({**config, "attention": "auto"}))) == 1


def test_documents_longer_than_the_models_positions(settings: Settings) -> None:
    table = {"config": {"model_type": "gpt2", "vocab_size": 3200, "n_embd": 16, "n_layer": 1, "n_head": 2,
                        "n_positions": 50, "attn_pdrop": 0.0}}  # fmt: skip
    with pytest.raises(InputError, match=r"a document of [\d,]+ tokens, .* says max_position_embeddings: 50"):
        quietly(settings(model=table, rows_per_step=16, trainer={"max_steps": 2}))


def test_rotary_embeddings_that_stretch_with_the_longest_document(settings: Settings, make_packed: Any) -> None:
    def model(limit: int, kind: str) -> dict[str, Any]:
        rope = {"rope_type": kind, "factor": 2.0, "rope_theta": 1e4, "original_max_position_embeddings": 50}
        return {"config": {**LLAMA, "max_position_embeddings": limit, "rope_parameters": rope}}

    refused = r"document of 96 tokens, more than the model takes: dynamic rotary .* longer than 50 .*max_length: 50"
    with pytest.raises(InputError, match=refused):
        quietly(settings(model=model(50, "dynamic"), trainer={"max_steps": 1}))
    lines: list[str] = []
    train(settings(model=model(96, "dynamic"), probe=True, trainer={"max_steps": 1}), say=lines.append)
    assert any("at length" in line for line in lines)
    padded = {"data": str(make_packed("three", 3)), "rows_per_step": 1, "loader": {"static_shapes": True}}
    with pytest.raises(InputError, match=r"has padding of 256 tokens, more than the model takes"):
        quietly(settings(model=model(96, "dynamic"), trainer={"max_steps": 1}, **padded))


def test_a_loss_that_is_no_number_ends_the_training_and_keeps_what_is_whole(settings: Settings, tmp_path: Path) -> None:
    keys = {**SGD, "learning_rate": 1e30, "save_strategy": "steps", "save_steps": 1, "save_total_limit": 1}
    with pytest.raises(PacktrainError, match=r"not a number at step 2.*trainer.learning_rate"):
        quietly(settings(trainer=keys, export=True))
    assert [path.name for path in (tmp_path / "out").glob("*") if path.name.startswith("checkpoint")] == [
        "checkpoint-1"
    ]


class SpoilGradient(torch.autograd.Function):  # type: ignore[misc]
    """The identity, with gradients that are NaN: as of sqrt(0) or 0·inf somewhere in a model."""

    @staticmethod
    def forward(ctx: Any, value: Any) -> Any:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * float("nan")


def spoil_gradients(monkeypatch: pytest.MonkeyPatch, first_step: int) -> None:
    loss = Forward.loss
    calls: list[int] = []

    def spoilt(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        value = loss(self, *args, **kwargs)
        return SpoilGradient.apply(value) if len(calls) >= 2 * first_step - 1 else value  # two micro-batches a step

    monkeypatch.setattr(Forward, "loss", spoilt)


@pytest.mark.parametrize("max_grad_norm", [0, 1])
@pytest.mark.parametrize("logging_steps", [1, 50])
def test_a_gradient_that_is_no_number_writes_no_checkpoint(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_grad_norm: int, logging_steps: int
) -> None:
    keys = {"save_strategy": "steps", "save_steps": 1, "max_grad_norm": max_grad_norm, "logging_steps": logging_steps}
    with monkeypatch.context() as patch:
        spoil_gradients(patch, 3)
        with pytest.raises(PacktrainError, match=r"weights hold NaN or infinity at step 3, for example in "):
            quietly(settings(trainer=keys, export=True))
    whole = sorted(path.parent.name for path in (tmp_path / "out").glob("checkpoint-*/packtrain.json"))
    assert whole == ["checkpoint-1", "checkpoint-2"]
    outcome = quietly(settings(trainer=keys))
    assert (outcome.resumed_from, outcome.steps) == (tmp_path / "out" / "checkpoint-2", 6)


def test_a_finished_model_is_finite_or_is_not_written(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil_gradients(monkeypatch, 6)
    with pytest.raises(PacktrainError, match=r"weights hold NaN or infinity at step 6"):
        quietly(settings(trainer={"logging_steps": 50}, export=True))
    assert not (tmp_path / "out" / "model").exists()


def test_the_model_that_training_starts_from_is_not_overwritten(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="would overwrite the one that training starts from"):
        quietly(settings(model=str(tmp_path / "out" / "model"), export=True))


def test_memory_that_runs_out_is_no_traceback(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Forward, "loss", lambda *_, **__: torch.empty(1 << 50))
    with pytest.raises(ConfigError, match=r"memory ran out in a batch of 2 rows.*\(.*\)\. Set rows_per_device: 1, "):
        quietly(settings())


@pytest.mark.usefixtures("flash_on_cpu")
def test_the_attention_that_is_printed_is_the_one_that_runs(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the model was made there is no kernel, but where the first batch comes there is one, as on CUDA."""
    monkeypatch.setitem(kernels._WHY_NOT, ("cpu", None), "no CUDA device")
    take_batches = PackedTrainer.get_batch_samples

    def move_to_the_kernel(self: Any, *args: Any, **kwargs: Any) -> Any:
        monkeypatch.setitem(kernels._WHY_NOT, ("cpu", None), "")
        return take_batches(self, *args, **kwargs)

    monkeypatch.setattr(PackedTrainer, "get_batch_samples", move_to_the_kernel)
    lines: list[str] = []
    train(settings(model={"config": LLAMA, "dtype": "bfloat16"}, trainer={"max_steps": 1}), say=lines.append)
    assert CALLS["forward"] > 0
    (line,) = [line for line in lines if line.startswith("attention: ")]
    assert line.startswith(f"attention: packed_varlen, {kernels.FLASH} (")


def test_memory_that_runs_out_in_the_probe_is_no_leak(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each of its passes."""
    passes: list[int] = []
    forward = LlamaMLP.forward

    def fail_at(number: int) -> Callable[..., Any]:
        def run(self: Any, hidden: Any) -> Any:
            passes.append(number)
            if len(passes) == number:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 139.80 GiB")
            return forward(self, hidden)

        return run

    for number in (1, 2, 5, 10, 18):  # runs, isolation, equivalence, at length
        passes.clear()
        monkeypatch.setattr(LlamaMLP, "forward", fail_at(number))
        with pytest.raises(
            ConfigError, match=r"memory ran out in a batch of 2 rows \(CUDA.*\)\. Set rows_per_device: 1"
        ):
            quietly(settings(probe=True))
        assert len(passes) == number


# From Python


def test_a_trainer_of_one_s_own(settings: Settings, few: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import TrainerCallback

    class Watching(TrainerCallback):  # type: ignore[misc]
        ended = 0

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            self.ended += 1

    watching = Watching()
    config = settings(data=str(few), trainer={"max_steps": -1, "learning_rate": 1e-2, "logging_steps": 2})
    trainer = PackedTrainer(config, callbacks=[watching])
    result = trainer.train()
    assert result.global_step == watching.ended == trainer.loader.total_rows // 4
    history = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert history[-1] < history[0]
    again = trainer.train()  # from the beginning of the data, not from its end
    assert again.global_step == result.global_step
    assert "grad_norm" in capsys.readouterr().out
