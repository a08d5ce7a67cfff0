"""The configuration of a training: what is refused, with which reason, and what becomes of what is given."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
accelerate = pytest.importorskip("accelerate")

from packtrain.pipeline import demo  # noqa: E402
from packtrain.pipeline.configfile import load_as  # noqa: E402
from packtrain.schemas.errors import ConfigError  # noqa: E402
from packtrain.training.trainer.arguments import accumulation, training_arguments  # noqa: E402
from packtrain.training.trainer.config import TrainConfig  # noqa: E402
from packtrain.training.trainer.models import (  # noqa: E402
    learned_positions,
    load_model,
    longest_trained,
    may_leave_weights_unused,
)
from packtrain.training.trainer.owned import OWNED  # noqa: E402
from packtrain.training.trainer.parallel import refuse_parallelism, warn_of_ignored_launcher  # noqa: E402
from packtrain.training.trainer.run import read_config  # noqa: E402

LEAST: dict[str, Any] = {"out": "out", "model": "model", "data": "packed", "rows_per_step": 8}
LLAMA = {"model_type": "llama", "vocab_size": 64, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
         "num_attention_heads": 4}  # fmt: skip


def config(**keys: Any) -> TrainConfig:
    return load_as(TrainConfig, {**LEAST, **keys})[0]


def test_short_forms_stand_for_long_ones() -> None:
    short = config(export="finished")
    assert (short.model.path, short.data[0].path, short.data[0].split) == ("model", "packed", "train")
    assert short.export is not None
    assert short.export.path == "finished"
    assert config(export=False).export is None
    mixed = config(data=["one", {"path": "two", "weight": 0.3}])
    assert [(source.where, source.weight) for source in mixed.sources()] == [("one", None), ("two", 0.3)]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"rows_per_stpe": 3}, "rows_per_stpe: there is no such key; did you mean rows_per_step"),
        ({"rows_per_step": 5, "rows_per_device": 8}, "must be a multiple of rows_per_device .8.; take 8$"),
        ({"rows_per_step": 7, "rows_per_device": 2}, "must be a multiple of rows_per_device .2.; take 6 or 8"),
        ({"model": {"random": True}}, "model: give either path .* or config"),
        ({"model": {"config": {"hidden_size": 3}}}, "needs a model_type"),
        ({"loss": "tokens"}, "loss: input should be 'token'"),
        ({"data": ["one", "two"], "eval": {}}, "eval.data is needed where the training data is a mixture"),
        ({"batching": "padded"}, "batching was removed: batches are always packed; leave it out"),
        ({"trainer": {"per_device_train_batch_size": 4}}, "per_device_train_batch_size cannot be set.*rows_per_device"),
        ({"trainer": {"dataloader_num_workers": 4}}, "dataloader_num_workers cannot be set.*loader.num_workers"),
        ({"trainer": {"num_train_epochs": 4, "output_dir": "x"}}, "use epochs; trainer.output_dir .*: use out"),
        ({"trainer": {"save_strategy": "epoch"}}, "use steps, with save_steps"),
        ({"trainer": {"gradient_checkpointing_kwargs": {"use_reentrant": True}}}, "use_reentrant: true drops"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_what_can(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**keys)
    with pytest.raises(ConfigError):
        read_config({**LEAST, **keys})


def test_every_owned_key_is_one_that_transformers_has_or_had() -> None:
    from dataclasses import fields

    from transformers import TrainingArguments

    known = {field.name for field in fields(TrainingArguments)}
    gone = {"group_by_length", "eval_batch_size", "train_batch_size"}
    assert set(OWNED) - gone <= known
    assert len(set(OWNED) & known) > 35


def test_transformers_keys_are_checked_by_name_and_value(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trainer.learning_rat: .* no such key; did you mean learning_rate"):
        training_arguments(config(trainer={"learning_rat": 1}), tmp_path, 1)
    with pytest.raises(ConfigError, match=r"TrainingArguments refuses it: .*nosuch"):
        training_arguments(config(trainer={"lr_scheduler_type": "nosuch"}), tmp_path, 1)
    with pytest.raises(ConfigError, match=r"compile.modus: there is no such key"):
        training_arguments(config(compile={"modus": "fast"}), tmp_path, 1)


@pytest.mark.parametrize(
    ("key", "given", "found"),
    [("learning_rate", "1e-3", 1e-3), ("max_steps", "5", 5), ("warmup_steps", 0.1, 0.1), ("save_steps", "0.5", 0.5)],
)
def test_numbers_that_yaml_takes_for_text_are_numbers(tmp_path: Path, key: str, given: Any, found: float) -> None:
    assert yaml.safe_load("1e-3") == "1e-3"
    value = getattr(training_arguments(config(trainer={key: given}), tmp_path, 1), key)
    assert (type(value), value) == (type(found), found)


@pytest.mark.parametrize(
    ("key", "value"),
    [("learning_rate", "fast"), ("learning_rate", -1.0), ("weight_decay", ".nan"), ("max_steps", None),
     ("max_grad_norm", [1]), ("save_steps", True), ("adam_epsilon", float("nan"))],
)  # fmt: skip
def test_what_is_no_number_is_refused_where_it_stands(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^trainer.{key}: .*(is not a number|is below 0)"):
        training_arguments(config(trainer={key: value}), tmp_path, 1)


def test_what_packtrain_decides_is_filled_in(tmp_path: Path) -> None:
    keys = {"learning_rate": 1e-4, "gradient_checkpointing": True, "logging_steps": 7}
    found = training_arguments(config(rows_per_step=24, rows_per_device=3, seed=5, trainer=keys), tmp_path, 2)
    assert found.output_dir == str(tmp_path / "out")
    assert (found.gradient_accumulation_steps, found.per_device_train_batch_size, found.seed) == (4, 3, 5)
    assert (found.learning_rate, found.logging_steps, found.logging_nan_inf_filter) == (1e-4, 7, False)
    checkpointing = getattr(found, "activation_checkpointing_kwargs", None) or found.gradient_checkpointing_kwargs
    assert checkpointing == {"use_reentrant": False}


def test_rows_are_divided_or_refused() -> None:
    assert accumulation(64, 2, 8) == 4
    with pytest.raises(ConfigError, match=r"rows_per_step=60 cannot be divided among 16 ranks.*take 48 or 64"):
        accumulation(60, 2, 8)


def test_models_are_drawn_by_the_seed_and_refused_by_name(tmp_path: Path) -> None:
    drawn = config(model={"config": LLAMA, "overrides": {"num_attention_heads": 2}}).model
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    one, same, other = (load_model(drawn, tmp_path, seed) for seed in (1, 1, 2))
    weight = [next(model.parameters()) for model in (one, same, other)]
    assert torch.equal(weight[0], weight[1])
    assert not torch.equal(weight[0], weight[2])
    assert one.config.num_attention_heads == 2
    assert torch.equal(torch.random.get_rng_state(), before)
    one.save_pretrained(tmp_path / "kept")
    kept = load_model(config(model=str(tmp_path / "kept")).model, tmp_path, 0)
    assert torch.equal(next(kept.parameters()), weight[0])
    anew = load_model(config(model={"path": str(tmp_path / "kept"), "random": True}).model, tmp_path, 3)
    assert not torch.equal(next(anew.parameters()), weight[0])
    for keys, message in (
        ({"path": "nowhere/at/all"}, "there is no folder"),
        ({"config": {"model_type": "nosuch"}}, "the configuration of .* cannot be read"),
        ({"config": LLAMA, "overrides": {"hidden_sise": 3}}, "did you mean hidden_size"),
        ({"config": {**LLAMA, "num_attention_heads": 3}}, "not a multiple of the number of attention heads"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_model(config(model=keys).model, tmp_path, 0)


def test_weights_that_are_damaged_or_missing_are_no_model(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    named = config(model=str(tmp_path / "kept")).model
    load_model(config(model={"config": LLAMA}).model, tmp_path, 0).save_pretrained(tmp_path / "kept")
    file = tmp_path / "kept" / "model.safetensors"
    whole = file.read_bytes()
    weights = {name: one.clone() for name, one in load_file(file).items()}  # no longer mapped from the file
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match=r"the weights in .*kept are damaged, or cut short"):
        load_model(named, tmp_path, 0)
    file.unlink()
    with pytest.raises(ConfigError, match=r"kept holds no weights .*: model: \{path: .*kept, random: true\}"):
        load_model(named, tmp_path, 0)
    save_file({name: one for name, one in weights.items() if ".mlp." not in name}, file, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"kept lacks 3 of the model's weights, such as model.layers.0.mlp.down_proj"):
        load_model(named, tmp_path, 0)
    with pytest.raises(ConfigError, match=r"^model.path: there is no folder"):
        load_model(config(model="nowhere").model, tmp_path, 0)


def test_positions_are_looked_up_or_computed(tmp_path: Path) -> None:
    gpt2 = {"model_type": "gpt2", "vocab_size": 64, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 48}
    opt = {"model_type": "opt", "vocab_size": 64, "hidden_size": 16, "ffn_dim": 16, "num_hidden_layers": 1,
           "num_attention_heads": 2, "word_embed_proj_dim": 16, "max_position_embeddings": 40}  # fmt: skip
    models = [load_model(config(model={"config": one}).model, tmp_path, 0) for one in (gpt2, opt, LLAMA)]
    assert [learned_positions(model) for model in models] == [48, 40, None]
    assert [longest_trained(model) for model in models] == [48, 40, 2048]


def test_experts_may_go_without_a_token() -> None:
    assert not may_leave_weights_unused(load_model(config(model={"config": LLAMA}).model, Path(), 0))
    mixtral = {**LLAMA, "model_type": "mixtral", "num_local_experts": 2, "num_attention_heads": 2}
    assert may_leave_weights_unused(load_model(config(model={"config": mixtral}).model, Path(), 0))


@pytest.mark.parametrize("name", ["cp", "tp"])
def test_parallelism_that_cuts_or_shares_rows_is_refused(name: str) -> None:
    from accelerate.utils import ParallelismConfig

    asked = ParallelismConfig(**{f"{name}_size": 2})
    with pytest.raises(ConfigError, match=f"parallelism_config.{name}_size=2"):
        refuse_parallelism(SimpleNamespace(parallelism_config=asked))
    refuse_parallelism(SimpleNamespace(parallelism_config=ParallelismConfig(dp_replicate_size=2)))
    refuse_parallelism(SimpleNamespace(parallelism_config=None))


def test_a_launcher_s_wish_that_was_passed_over_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from accelerate.utils import DistributedType

    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    warn_of_ignored_launcher(SimpleNamespace(distributed_type=DistributedType.FSDP))
    assert not caplog.records
    warn_of_ignored_launcher(SimpleNamespace(distributed_type=DistributedType.MULTI_CPU))
    assert "trains with MULTI_CPU" in caplog.text


def test_the_shipped_configuration_loads() -> None:
    data = yaml.safe_load((Path(demo.__file__).parent / "train.yaml").read_text(encoding="utf-8"))
    shipped = config(**data)
    assert shipped.epochs > 1
    assert training_arguments(shipped, Path("/nowhere"), 1).lr_scheduler_type == "cosine"
