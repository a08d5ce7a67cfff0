"""Training with loss weights: every gradient is that of the documents alone, each token times its weight, and a step is
the weighted mean over all ranks and micro-batches.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from packtrain.training import PackedLoader, weighted_loss  # noqa: E402
from packtrain.training.trainer.config import ModelConfig  # noqa: E402
from packtrain.training.trainer.forward import Forward, fuse_loss  # noqa: E402
from packtrain.training.trainer.loss import targets  # noqa: E402
from packtrain.training.trainer.model import load_model  # noqa: E402
from packtrain.training.trainer.run import train  # noqa: E402
from torch.nn import functional  # noqa: E402

from tests.support import warm  # noqa: E402

Settings = Callable[..., dict[str, Any]]
SGD = {"optim": "sgd", "learning_rate": 0.5, "lr_scheduler_type": "constant", "max_grad_norm": 0, "weight_decay": 0.0}


def plain_sums(model: Any, batch: dict[str, Any]) -> tuple[Any, float]:
    """Sums of weight times loss, and of weights, of a packed batch: every document alone, token by token."""
    total, mass = torch.zeros(()), 0.0
    for begin, end in pairwise(batch["cu_seq_lens_q"].tolist()):
        logits = model(batch["input_ids"][:, begin:end], use_cache=False).logits[0]
        for place in range(begin + 1, end):
            if (label := int(batch["labels"][0, place])) != -100:
                weight = float(batch["loss_weights"][0, place])
                chances = functional.log_softmax(logits[place - begin - 1].float(), dim=-1)
                total = total - weight * chances[label]
                mass += weight
    return total, mass


def descend(model: Any, data: Path, steps: int, rate: float, rows_per_step: int = 4, seed: int = 3) -> list[float]:
    """Gradient descent on the weighted mean of whole steps; changes the model, returns the losses."""
    losses = []
    loader = PackedLoader(data, rows_per_step=rows_per_step, seed=seed, rank=0, world_size=1, loss_weights=True)
    for batch in islice(loader, steps):
        total, mass = plain_sums(model, batch)
        (total / mass).backward()
        losses.append(float(total) / mass)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= rate * parameter.grad
                    parameter.grad = None
    return losses


def initial(config: dict[str, Any]) -> Any:
    return load_model(ModelConfig.model_validate(config["model"]), Path.cwd(), config["seed"])


def gradients(model: Any) -> list[Any]:
    found = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    return found


@pytest.mark.parametrize("kernel", ["none", "chunked"])
def test_packed_gradients_are_those_of_the_documents_alone(settings: Settings, weighted: Path, kernel: str) -> None:
    model = initial(settings())
    loader = PackedLoader(weighted, rows_per_step=4, loss_weights=True)
    batches = list(islice(loader, 2))
    sums = [plain_sums(model, batch) for batch in batches]
    whole = sum(mass for _, mass in sums)
    (sum(total for total, _ in sums) / whole).backward()
    expected = gradients(model)
    model.config._attn_implementation = "eager"
    from packtrain.training.attention import use_packed

    use_packed(model)
    forward = Forward(model, fused=fuse_loss(model, kernel, cuda=False))
    units = torch.tensor(sum(targets(batch).units for batch in batches))
    assert float(units) == pytest.approx(whole, rel=1e-7)
    parts = []
    for batch in batches:  # two micro-batches
        loss = forward.loss(model, batch, targets(batch), units, share=0.5)
        loss.backward()
        parts.append(loss.item())
    for mine, theirs in zip(gradients(model), expected, strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-5, atol=1e-6 * float(theirs.abs().max()) + 1e-9)
    assert sum(parts) == pytest.approx(sum(float(total) for total, _ in sums) / whole, rel=1e-6)


@pytest.mark.parametrize("rows_per_device", [1, 4])
def test_a_step_is_the_weighted_mean_whatever_the_micro_batches(
    settings: Settings, weighted: Path, rows_per_device: int
) -> None:
    config = settings(data=str(weighted), rows_per_device=rows_per_device, trainer={**SGD, "max_steps": 3})
    expected = descend(initial(config), weighted, 3, 0.5)
    outcome = train(config, say=lambda text: None)
    found = [entry["loss"] for entry in outcome.log if "loss" in entry]
    assert found == pytest.approx(expected, rel=1e-6)
    without = train(
        {**config, "out": config["out"] + "-plain", "loader": {"loss_weights": False}}, say=lambda text: None
    )
    other = [entry["loss"] for entry in without.log if "loss" in entry]
    assert other[0] != pytest.approx(expected[0], rel=1e-3), "the weights make no difference"


def test_the_held_out_loss_is_the_weighted_mean(settings: Settings, weighted: Path) -> None:
    trainer = {"max_steps": 1, "learning_rate": 0.0}
    config = settings(data=str(weighted), eval={"rows_per_device": 3}, trainer=trainer)
    log = train(config, say=lambda text: None).log
    model = initial(config)
    with torch.no_grad():
        held = PackedLoader(weighted, split="holdout", rows_per_step=1, loss_weights=True)
        sums = [plain_sums(model, batch) for batch in held]
    (found,) = [entry for entry in log if "eval_loss" in entry]
    expected = sum(float(total) for total, _ in sums) / sum(mass for _, mass in sums)
    assert found["eval_loss"] == pytest.approx(expected, rel=1e-6)
    assert found["eval_loss_chats"] != found["eval_loss_texts"]


@pytest.mark.slow
def test_two_ranks_with_micro_batches_make_the_steps_of_one(settings: Settings, weighted: Path, tmp_path: Path) -> None:
    trainer = {**SGD, "max_steps": 3, "save_strategy": "steps", "save_steps": 3, "use_cpu": True}
    config = settings(data=str(weighted), rows_per_step=8, rows_per_device=2, trainer=trainer)
    path = tmp_path / "two.json"
    path.write_text(json.dumps(config))
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *ranks, "-m", "packtrain.pipeline.cli", "train", str(path)]
    done = subprocess.run(command, env=warm_environment(), capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    state = json.loads((Path(config["out"]) / "checkpoint-3" / "trainer_state.json").read_text())
    found = [entry["loss"] for entry in state["log_history"] if "loss" in entry]
    model = initial(config)
    assert found == pytest.approx(descend(model, weighted, 3, 0.5, rows_per_step=8), rel=1e-6)
    from safetensors.torch import load_file

    trained = load_file(Path(config["out"]) / "checkpoint-3" / "model.safetensors")
    for name, parameter in model.named_parameters():
        if name in trained:
            assert torch.allclose(trained[name], parameter, rtol=1e-5, atol=1e-6), name


def warm_environment() -> dict[str, str]:
    import os

    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | warm.python()


# Trainers of others


def test_a_loop_of_one_s_own(settings: Settings, weighted: Path) -> None:
    model = initial(settings())
    batch = next(iter(PackedLoader(weighted, rows_per_step=1, loss_weights=True)))
    total, mass = plain_sums(model, batch)
    from packtrain.training.attention import use_packed

    use_packed(model)
    inputs = {name: value for name, value in batch.items() if name not in ("labels", "loss_weights")}
    assert float(weighted_loss(model(**inputs).logits, batch)) == pytest.approx(float(total) / mass, rel=1e-6)
