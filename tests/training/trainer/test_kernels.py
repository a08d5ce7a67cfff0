"""Loss kernels and the meter, each through a whole training from its configuration."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from packtrain.training.trainer.run import Outcome, train  # noqa: E402

Settings = Callable[..., dict[str, Any]]


def run(settings: Settings, **keys: Any) -> Outcome:
    """A training that says nothing."""
    return train(settings(**keys), say=lambda text: None)


def column(outcome: Outcome, name: str) -> list[float]:
    """Of every logged line of training."""
    found = [entry[name] for entry in outcome.log if "loss" in entry]
    assert len(found) >= 6
    return found


@pytest.mark.slow
def test_every_loss_kernel_trains_alike(settings: Settings, two_sources: Path) -> None:
    """On data with untrained tokens, two micro-batches a step, six steps of a real optimizer."""
    plain, chunked = (
        run(settings, data=str(two_sources), loss_kernel=kind, rows_per_device=2) for kind in ("none", "chunked")
    )
    assert column(chunked, "loss") == pytest.approx(column(plain, "loss"), rel=1e-5)
    assert column(chunked, "grad_norm") == pytest.approx(column(plain, "grad_norm"), rel=1e-4)


def test_an_auxiliary_loss_of_experts_is_the_same_with_a_chunked_loss(settings: Settings) -> None:
    experts = {
        "model_type": "mixtral", "vocab_size": 3200, "hidden_size": 32, "intermediate_size": 32,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4,
        "num_experts_per_tok": 2, "output_router_logits": True, "router_aux_loss_coef": 0.5, "sliding_window": None,
    }  # fmt: skip
    plain, chunked = (run(settings, model={"config": experts}, loss_kernel=kind) for kind in ("none", "chunked"))
    assert column(chunked, "loss") == pytest.approx(column(plain, "loss"), rel=1e-5)
    assert column(chunked, "grad_norm") == pytest.approx(column(plain, "grad_norm"), rel=1e-4)


def test_what_is_logged(settings: Settings) -> None:
    outcome = run(settings)
    seen = column(outcome, "tokens_seen")
    assert seen == sorted(seen)
    assert all(value > 0 for value in column(outcome, "tokens_per_second"))
    assert all(0 <= value < 1 for value in column(outcome, "loader_wait"))
    assert not any("mfu" in entry for entry in outcome.log), "a CPU's peak is not known"
