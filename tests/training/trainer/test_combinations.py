"""Every rule refuses what it is about, and nothing else; and what is no rule was tried."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from packtrain.schemas.errors import ConfigError  # noqa: E402
from packtrain.training.attention import use_packed  # noqa: E402
from packtrain.training.trainer.adapters import add_adapters  # noqa: E402
from packtrain.training.trainer.combinations import RULES, Settings, check_combinations, refuse  # noqa: E402
from packtrain.training.trainer.config import TrainConfig  # noqa: E402
from packtrain.training.trainer.heads import use_fused_loss  # noqa: E402
from packtrain.training.trainer.memory import offloaded  # noqa: E402

from tests.training.trainer.tiny_models import make  # noqa: E402

GPU = Settings(device="cuda")
REFUSED: dict[str, Settings] = {
    "loss_kernel: liger with offload_activations": replace(GPU, loss_kernel="liger", offload_activations=True),
    "loss_kernel: liger with loss: document": replace(GPU, loss_kernel="liger", loss="document"),
    "offload_activations with trainer.gradient_checkpointing": replace(
        GPU, offload_activations=True, checkpointing=True
    ),
    "compile: {mode: …} with loader.static_shapes: false": replace(GPU, compile_mode="reduce-overhead"),
    "compile: {mode: …} with offload_activations": replace(
        GPU, compile_mode="max-autotune", static_shapes=True, offload_activations=True
    ),
    "trainer.fp16 on a CPU": Settings(mixed="fp16"),
    "model.dtype: float16": replace(GPU, weights="float16"),
    "model.dtype: bfloat16 with trainer.fp16": replace(GPU, weights="bfloat16", mixed="fp16"),
    "attention dropout": Settings(dropout=("attn_pdrop", 0.1)),
    "model.quantization without lora": replace(GPU, quantised=True),
    "export.merge with model.quantization": replace(GPU, merge=True, quantised=True, adapted=True),
    "export.merge without lora": Settings(merge=True),
    "export.merge with sharded weights": replace(GPU, merge=True, adapted=True, sharded="FSDP"),
    "model.quantization with DeepSpeed": replace(GPU, quantised=True, adapted=True, sharded="DeepSpeed"),
    "loss_kernel: liger on a CPU": Settings(loss_kernel="liger"),
    "nothing to train": Settings(weights="none"),
}
ALLOWED = (
    Settings(),
    GPU,
    replace(GPU, loss_kernel="liger", checkpointing=True, mixed="bf16"),
    replace(GPU, compile_mode="reduce-overhead", static_shapes=True),
    replace(GPU, compile_mode="default", offload_activations=True, loss_kernel="chunked", loss="document"),
    replace(GPU, quantised=True, adapted=True, mixed="bf16", sharded="FSDP"),
    replace(GPU, mixed="fp16"),
    Settings(dropout=("attn_pdrop", 0.1), batching="padded"),
    Settings(adapted=True, merge=True),
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.keys)
def test_each_rule_refuses_its_own_combination_alone(rule: Any) -> None:
    assert [other.keys for other in RULES if other.applies(REFUSED[rule.keys])] == [rule.keys]
    with pytest.raises(ConfigError) as error:
        refuse(REFUSED[rule.keys])
    assert str(error.value) == f"{rule.keys}: {rule.reason}. {rule.mend}"


def test_every_rule_has_its_test_and_what_is_allowed_passes() -> None:
    assert {rule.keys for rule in RULES} == set(REFUSED)
    for settings in ALLOWED:
        refuse(settings)


def test_all_faults_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        refuse(Settings(mixed="fp16", merge=True))
    assert len(str(error.value).splitlines()) == 2


def config(**changes: Any) -> TrainConfig:
    return TrainConfig.model_validate({"out": "out", "model": "model", "data": "packed", "rows_per_step": 1, **changes})


def arguments(folder: Path, **changes: Any) -> Any:
    return transformers.TrainingArguments(str(folder), use_cpu=True, report_to=[], **changes)


def test_settings_are_read_from_real_configurations(tmp_path: Path) -> None:
    found = Settings.of(config(), make("Llama"), arguments(tmp_path))
    assert found == Settings()
    found = Settings.of(
        config(
            compile={"mode": "reduce-overhead"},
            loader={"static_shapes": 4},
            loss="document",
            loss_kernel="chunked",
            offload_activations=True,
            batching="padding_free",
            export={"merge": True},
        ),
        add_adapters(make("GPT2", dtype=torch.bfloat16), {"r": 2}),
        arguments(tmp_path, bf16=True, gradient_checkpointing=True),
    )
    assert found == Settings(
        batching="padding_free", static_shapes=True, compile_mode="reduce-overhead", loss="document",
        loss_kernel="chunked", offload_activations=True, checkpointing=True, mixed="bf16", weights="float32",
        dropout=("attn_pdrop", 0.1), adapted=True, merge=True,
    )  # fmt: skip


def test_a_real_model_with_dropout_is_refused_and_without_it_is_not(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"attention dropout: .*overrides"):
        check_combinations(config(), make("GPT2"), arguments(tmp_path))
    check_combinations(config(), make("GPT2", attn_pdrop=0.0), arguments(tmp_path))
    frozen = make("Llama").requires_grad_(False)
    with pytest.raises(ConfigError, match="no weight of the model takes a gradient"):
        check_combinations(config(), frozen, arguments(tmp_path))


def packed() -> dict[str, Any]:
    """Three documents of 20, 13 and 27 tokens."""
    torch.manual_seed(1)
    ids = torch.randint(0, 97, (1, 60))
    bounds = torch.tensor([0, 20, 33, 60], dtype=torch.int32)
    labels = ids.clone()
    labels[0, bounds[:-1]] = -100
    return {
        "input_ids": ids,
        "labels": labels,
        "position_ids": torch.cat([torch.arange(length) for length in (20, 13, 27)])[None],
        "cu_seq_lens_q": bounds,
        "cu_seq_lens_k": bounds,
        "max_length_q": 27,
        "max_length_k": 27,
        "use_cache": False,
    }


def gradients(model: Any, *, offload: bool = False) -> list[Any]:
    model.zero_grad()
    if offload:
        with offloaded(model, min_bytes=1024, from_cpu=True) as moved:
            loss = model(**packed()).loss
        assert moved.bytes > 10_000
    else:
        loss = model(**packed()).loss
    loss.backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.slow
def test_what_is_no_rule_because_it_works() -> None:
    """Compiled, with per-document attention on a CPU, the chunked loss, and offloading: the same gradients."""
    model = make("Llama").train()
    use_packed(model)
    expected = gradients(model)
    use_fused_loss(model, "chunked")
    for offload in (False, True):
        torch._dynamo.reset()
        found = gradients(torch.compile(model, backend="inductor"), offload=offload)
        for one, other in zip(found, expected, strict=True):
            assert torch.allclose(one, other, atol=1e-6)
