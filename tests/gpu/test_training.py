"""Training on a GPU: ten steps in bf16, a resumption, and the same numbers as on the CPU.

Needs a CUDA device that FlashAttention runs on.
"""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

from packtrain.training import PackedLoader  # noqa: E402
from packtrain.training.attention.packed_attention import use_packed  # noqa: E402
from packtrain.training.models.model import load_model  # noqa: E402
from packtrain.training.models.model_config import ModelConfig  # noqa: E402
from packtrain.training.trainer.trainer import PackedTrainer  # noqa: E402

from tests import kit  # noqa: E402

VOCABULARY = 3200
"""Of the demo's tokenizer."""
Log = list[dict[str, Any]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some hundred rows of 1,024 tokens, of documents of very different lengths."""
    root = tmp_path_factory.mktemp("data")
    kit.write(root / "text.jsonl", [{"text": f"number {i} " * (5 + i * i % 61)} for i in range(800)])
    source = {"name": "text", "format": "text", "path": "text.jsonl"}
    return kit.packed(kit.configure(root, source, truncate={"max_length": 1024})).folder


MODEL = {
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}
"""Some 1.3 million weights. Heads of 64, as common models have."""


def train(data: Path, out: Path, *, steps: int = 10, resume: bool = False, **more: Any) -> tuple[PackedTrainer, Log]:
    """Train, probe included; the entries that have a loss."""
    settings: dict[str, Any] = {
        "bf16": True,
        "max_steps": steps,
        "learning_rate": 2e-3,
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "save_steps": 5,
        "report_to": "none",
        "disable_tqdm": True,
        **more.pop("arguments", {}),
    }
    rows = {"rows_per_step": 8, "rows_per_device": 4, "epochs": 4, "seed": 7}
    config = {"out": str(out), "model": {"config": MODEL}, "data": str(data), **rows, **more, "trainer": settings}
    trainer = PackedTrainer(config, say=lambda text: None)
    trainer.train(resume_from_checkpoint=str(out / "checkpoint-5") if resume else None)
    return trainer, [entry for entry in trainer.state.log_history if "loss" in entry]


@pytest.fixture(scope="module")
def ten_steps(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[PackedTrainer, Log, Path]:
    out = tmp_path_factory.mktemp("ten")
    return *train(data, out), out


def test_ten_steps_by_the_flash_kernel(ten_steps: tuple[PackedTrainer, Log, Path]) -> None:
    trainer, log, _ = ten_steps
    assert trainer.applied is not None
    assert trainer.applied.name == "packed_varlen"
    assert "varlen" in trainer.applied.kernel
    losses = [entry["loss"] for entry in log]
    assert len(losses) == 10
    assert losses[0] == pytest.approx(torch.tensor(VOCABULARY).log().item(), rel=0.05)  # of drawn weights
    assert losses[-1] < losses[0]
    assert all(torch.isfinite(weight).all() for weight in trainer.model.parameters())


def test_it_goes_on_from_a_checkpoint(data: Path, ten_steps: tuple[PackedTrainer, Log, Path]) -> None:
    _, whole, out = ten_steps
    trainer, log = train(data, out, resume=True)
    assert [entry["step"] for entry in log] == list(range(1, 11))
    # The backward pass of FlashAttention adds in no fixed order: losses agree to bf16's rounding, not to the bit.
    assert [entry["loss"] for entry in log[5:]] == pytest.approx([entry["loss"] for entry in whole[5:]], rel=2e-3)
    assert trainer.loader.state_dict()["rows"] == 80  # 10 steps of 8: none twice, none left out


def test_the_first_loss_is_the_cpu_s(data: Path, ten_steps: tuple[PackedTrainer, Log, Path]) -> None:
    """A kernel that let documents see each other, or lost a window, would show here."""
    trainer, log, _ = ten_steps
    seed = trainer.args.seed
    plain = load_model(ModelConfig(config=MODEL), data, seed)
    use_packed(plain, "packed_varlen")
    whole = next(iter(PackedLoader(data, rows_per_step=8, seed=seed, epochs=4, rank=0, world_size=1)))
    with torch.no_grad():
        assert log[0]["loss"] == pytest.approx(plain(**whole).loss.item(), rel=2e-3)


@pytest.mark.parametrize("kernel", ["chunked", "liger"])
def test_fused_losses_agree(
    data: Path, ten_steps: tuple[PackedTrainer, Log, Path], tmp_path: Path, kernel: str
) -> None:
    from packtrain.schemas.errors import ConfigError

    _, log, _ = ten_steps
    try:
        _, fused = train(data, tmp_path, steps=3, loss_kernel=kernel, arguments={"save_strategy": "no"})
    except ConfigError as error:
        if kernel == "chunked":
            raise
        pytest.skip(str(error))
    assert [entry["loss"] for entry in fused] == pytest.approx([entry["loss"] for entry in log[:3]], rel=5e-3)


@pytest.mark.slow
def test_compiled_with_fixed_shapes(data: Path, ten_steps: tuple[PackedTrainer, Log, Path], tmp_path: Path) -> None:
    _, log, _ = ten_steps
    fixed = {"static_shapes": True}
    arguments = {"torch_compile": True, "save_strategy": "no"}
    _, compiled = train(data, tmp_path, steps=3, loader=fixed, arguments=arguments)
    assert [entry["loss"] for entry in compiled] == pytest.approx([entry["loss"] for entry in log[:3]], rel=5e-3)


@pytest.mark.slow
def test_weights_in_bf16_and_checkpointing(data: Path, tmp_path: Path) -> None:
    arguments = {"gradient_checkpointing": True, "bf16": False, "save_strategy": "no"}
    _, log = train(data, tmp_path, model={"config": MODEL, "dtype": "bfloat16"}, arguments=arguments)
    assert log[-1]["loss"] < log[0]["loss"]
