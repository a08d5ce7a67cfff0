"""Every rule refuses what it is about, and nothing else; and what is no rule was tried."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from packtrain.schemas.errors import ConfigError  # noqa: E402
from packtrain.training.attention import use_packed  # noqa: E402
from packtrain.training.trainer.adapters import add_adapters  # noqa: E402
from packtrain.training.trainer.combinations import Settings, check_combinations, faults  # noqa: E402
from packtrain.training.trainer.config import TrainConfig  # noqa: E402
from packtrain.training.trainer.fused_loss import FusedLoss, fuse_loss  # noqa: E402
from packtrain.training.trainer.memory import offloaded  # noqa: E402

from tests.training.trainer.tiny_models import loss_of, make  # noqa: E402

GPU = Settings(device="cuda")
REFUSED: dict[str, Settings] = {
    "loss_kernel: liger with offload_activations": replace(GPU, liger=True, offloads=True),
    "offload_activations with trainer.gradient_checkpointing": replace(GPU, offloads=True, checkpointing=True),
    "compile: {mode: …} with loader.static_shapes: false": replace(GPU, graphs=True),
    "compile: {mode: …} with offload_activations": replace(GPU, graphs=True, static_shapes=True, offloads=True),
    "trainer.fp16 on a CPU": Settings(mixed="fp16"),
    "model.dtype: float16": replace(GPU, weights="float16"),
    "model.dtype: bfloat16 with trainer.fp16": replace(GPU, weights="bfloat16", mixed="fp16"),
    "attention dropout": Settings(dropout=True),
    "model.quantization without lora": replace(GPU, quantised=True),
    "export.merge with model.quantization": replace(GPU, merge=True, quantised=True, adapted=True),
    "export.merge without lora": Settings(merge=True),
    "export.merge with sharded weights": replace(GPU, merge=True, adapted=True, sharded="FSDP"),
    "model.quantization with DeepSpeed": replace(GPU, quantised=True, adapted=True, sharded="DeepSpeed"),
    "nothing to train": Settings(weights=None),
}
ALLOWED = (
    Settings(),
    GPU,
    replace(GPU, liger=True, checkpointing=True, mixed="bf16"),
    replace(GPU, graphs=True, static_shapes=True),
    replace(GPU, offloads=True),
    replace(GPU, quantised=True, adapted=True, mixed="bf16", sharded="FSDP"),
    replace(GPU, mixed="fp16"),
    Settings(dropout=True, attention="sdpa"),
    Settings(adapted=True, merge=True),
)


@pytest.mark.parametrize("keys", REFUSED)
def test_each_combination_is_refused_alone(keys: str) -> None:
    (found,) = faults(REFUSED[keys])
    assert found.startswith(f"{keys}: ")
    assert ". " in found.removeprefix(keys), "what to do"


def test_what_is_allowed_passes() -> None:
    assert [list(faults(settings)) for settings in ALLOWED] == [[]] * len(ALLOWED)


def test_all_faults_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        check_combinations(config(export={"merge": True}), make("GPT2"), arguments(tmp_path))
    assert [line.partition(":")[0] for line in str(error.value).splitlines()] == [
        "attention dropout", "export.merge without lora"
    ]  # fmt: skip


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
            export={"merge": True},
        ),
        add_adapters(make("GPT2", dtype=torch.bfloat16), {"r": 2}),
        arguments(tmp_path, bf16=True, gradient_checkpointing=True),
    )
    assert found == Settings(
        static_shapes=True, graphs=True, offloads=True, checkpointing=True, mixed="bf16", weights="float32",
        dropout=True, adapted=True, merge=True,
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


def gradients(model: Any, fused: FusedLoss | None = None, *, offload: bool = False) -> list[Any]:
    model.zero_grad()
    with offloaded(model, min_bytes=1024) if offload else nullcontext():
        loss = loss_of(model, fused, **packed())
    loss.backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.slow
def test_what_is_no_rule_because_it_works() -> None:
    """Compiled, with per-document attention on a CPU, the chunked loss, and offloading: the same gradients."""
    model = make("Llama").train()
    use_packed(model)
    expected = gradients(model)
    fused = fuse_loss(model, "chunked")
    for offload in (False, True):
        torch._dynamo.reset()
        found = gradients(torch.compile(model, backend="inductor"), fused, offload=offload)
        for one, other in zip(found, expected, strict=True):
            assert torch.allclose(one, other, atol=1e-6)
