"""What a configuration can ask for beside plain training: each through the whole way, held against the plain one."""

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from packtrain.schemas.errors import LeakError  # noqa: E402

from tests import kit  # noqa: E402
from tests.training.trainer.trainings import Settings, losses, quietly  # noqa: E402

# The loss, computed in other ways


def columns(config: dict[str, Any]) -> tuple[list[float], list[float]]:
    """The losses and gradient norms of a training."""
    log = [entry for entry in quietly(config).log if "loss" in entry]
    assert len(log) >= 6
    return [entry["loss"] for entry in log], [entry["grad_norm"] for entry in log]


@pytest.mark.parametrize("experts", [False, True])
def test_a_fused_loss_trains_as_the_plain_one(settings: Settings, two_sources: Path, experts: bool) -> None:
    """On data with untrained tokens, two micro-batches a step; with the auxiliary loss of experts, too."""
    model = {
        "model_type": "mixtral", "vocab_size": 3200, "hidden_size": 32, "intermediate_size": 32,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4,
        "num_experts_per_tok": 2, "output_router_logits": True, "router_aux_loss_coef": 0.5, "sliding_window": None,
    }  # fmt: skip
    keys = {"data": str(two_sources), **({"model": {"config": model}} if experts else {})}
    plain, fused = (columns(settings(**keys, loss_kernel=kind)) for kind in ("none", "chunked"))
    assert fused[0] == pytest.approx(plain[0], rel=1e-5)
    assert fused[1] == pytest.approx(plain[1], rel=1e-4)


# Adapters


def test_adapters_train_go_on_and_are_exported(settings: Settings, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    saved = {"save_strategy": "steps", "save_steps": 3, "learning_rate": 1e-2}
    config = settings(lora={"r": 4}, trainer=saved, export=True)
    whole = quietly(config)
    assert losses(whole)[-1] < losses(whole)[0]
    again = quietly({**config, "out": str(tmp_path / "again"), "resume": str(whole.out / "checkpoint-3")})
    assert losses(again) == losses(whole)
    assert whole.export is not None
    assert not (whole.export / "model.safetensors").exists()
    config = peft.PeftConfig.from_pretrained(whole.export)
    assert (config.r, config.task_type) == (4, "CAUSAL_LM")


# What is refused


def test_a_model_that_leaks_is_not_trained(settings: Settings) -> None:
    sinks = {
        "model_type": "gpt_oss", "vocab_size": 3200, "hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 2,
        "num_experts_per_tok": 1, "layer_types": ["full_attention", "full_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }  # fmt: skip
    config = settings(model={"config": sinks}, attention="eager", trainer={"max_steps": 1})
    with pytest.raises(LeakError, match=r"GptOssForCausalLM with attention eager does not keep .* apart"):
        quietly(config)
    assert len(losses(quietly({**config, "attention": "auto"}))) == 1


# Dry runs


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_dry_run_looks_for_data_and_model(
    settings: Settings, folder: Path, two_sources: Path, tmp_path: Path, form: list[str]
) -> None:
    (tmp_path / "weightless").mkdir()
    (tmp_path / "weightless" / "config.json").write_text(json.dumps(settings()["model"]["config"]))
    right = {"eval": {"every": 1}, "model": {"path": "weightless", "random": True}}
    for keys in ({"data": "nowhere"}, {"data": str(folder), "eval": {"every": 1}}, {"model": "nowhere"}, right):
        (tmp_path / "train.yaml").write_text(json.dumps(settings(data=str(two_sources)) | keys))
        done = kit.cli("train", "train.yaml", "--dry-run", *form, cwd=tmp_path)
        assert (done.code, done.out != "") == ((0, True) if keys is right else (2, False)), done
    assert str(tmp_path / "out") in done.out
    assert not (tmp_path / "out").exists()
