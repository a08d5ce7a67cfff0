"""What a configuration can ask for beside plain training: each through the whole way, held against the plain one."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from packtrain.schemas.errors import ConfigError, LeakError, PacktrainError  # noqa: E402
from packtrain.training.trainer.run import Outcome, train  # noqa: E402

Settings = Callable[..., dict[str, Any]]


def quietly(config: dict[str, Any]) -> Outcome:
    return train(config, say=lambda text: None)


def losses(outcome: Outcome) -> list[float]:
    return [entry["loss"] for entry in outcome.log if "loss" in entry]


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


def test_offloading_changes_nothing(settings: Settings) -> None:
    plain = losses(quietly(settings(trainer={"max_steps": 3})))
    assert losses(quietly(settings(offload_activations=True, trainer={"max_steps": 3}))) == plain


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


def test_a_recurrent_model_is_refused(settings: Settings) -> None:
    # No attention that could be set, and a state that runs on from document to document.
    mamba = {"model_type": "mamba", "vocab_size": 3200, "hidden_size": 16, "num_hidden_layers": 1, "state_size": 4}
    config = settings(model={"config": mamba}, trainer={"max_steps": 1})
    with pytest.raises((ConfigError, LeakError)):
        quietly(config)


def test_combinations_are_refused_before_anything_is_computed(settings: Settings) -> None:
    dropout = {**settings()["model"]["config"], "attention_dropout": 0.1}
    with pytest.raises(LeakError, match=r"attention dropout 0\.1, which packed attention does not compute"):
        quietly(settings(model={"config": dropout}))
    with pytest.raises(ConfigError, match="max_steps=1,000, but the data gives"):
        quietly(settings(trainer={"max_steps": 1000}))


# Dry runs


@pytest.mark.parametrize("as_json", [False, True])
def test_a_dry_run_looks_for_data_and_model(
    settings: Settings,
    folder: Path,
    two_sources: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    as_json: bool,
) -> None:
    from packtrain.pipeline.cli.train import train as start

    def dry(**keys: Any) -> None:
        config = tmp_path / "train.yaml"
        config.write_text(json.dumps(settings(data=str(two_sources)) | keys))
        start(config, [], demo=False, out=None, dry_run=True, as_json=as_json)

    (tmp_path / "unfinished").mkdir()
    (tmp_path / "bare").mkdir()
    (tmp_path / "weightless").mkdir()
    (tmp_path / "weightless" / "config.json").write_text(json.dumps(settings()["model"]["config"]))
    holdout = "has no split 'holdout'; it has train; `holdout: {fraction: 0.02}` in the run's configuration makes one"
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"data": "nowhere"}, "nowhere does not exist; give the folder that `packtrain run` wrote"),
        ({"data": "unfinished"}, "unfinished has no manifest.json, so it is not a finished dataset"),
        ({"data": str(folder), "eval": {"every": 1}}, holdout),
        ({"model": "nowhere"}, "model.path: there is no folder"),
        ({"model": "bare"}, "model: the configuration of bare cannot be read"),
    ]
    for keys, message in wrong:
        with pytest.raises(PacktrainError, match=re.escape(message)):
            dry(**keys)
        assert capsys.readouterr().out == ""
    dry(eval={"every": 1}, model={"path": "weightless", "random": True})
    assert str(tmp_path / "out") in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def test_the_demo_trains_on_one_thread(two_sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from packtrain.pipeline.cli.train import train as start

    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "demo").symlink_to(two_sources)
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(2)
    try:
        start(None, [], demo=True, out=None, dry_run=True)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(1)
