"""`torch_compile`: after the probe and the comparison of losses, steps are compiled, and stay so as lengths change."""

from typing import Any

import pytest
import torch
from packtrain.training.trainer import heads

from tests.support.varlen_kernel import flash_on_cpu
from tests.training.trainer.test_loss import in_liger_s_chunks
from tests.training.trainer.tiny_models import needs_fused_loss
from tests.training.trainer.trainings import LLAMA, Settings, losses, quietly

__all__ = ["flash_on_cpu"]  # a fixture
SMALL = {"config": {**LLAMA, "num_hidden_layers": 1}, "dtype": "bfloat16"}
COMPILED = {"torch_compile": True, "torch_compile_backend": "eager", "max_steps": 4}


@pytest.mark.parametrize(
    ("kernel", "keys"),
    [
        ("none", {}),
        pytest.param("chunked", {}, marks=needs_fused_loss),
        ("liger", {}),
        pytest.param("chunked", {"loader": {"static_shapes": True}, "eval": {"every": 2}}, marks=needs_fused_loss),
    ],
)
@pytest.mark.slow
@pytest.mark.usefixtures("flash_on_cpu")
def test_the_step_is_compiled(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, kernel: str, keys: dict[str, Any], two_sources: Any
) -> None:
    from torch._dynamo.utils import counters

    monkeypatch.setattr(heads, "_liger", lambda: in_liger_s_chunks)
    fuse = heads.fuse_loss
    monkeypatch.setattr(
        "packtrain.training.trainer.setup.fuse_loss", lambda model, kind, *, cuda: fuse(model, kind, cuda=True)
    )
    torch._dynamo.reset()
    counters.clear()
    if "eval" in keys:
        keys = {**keys, "data": str(two_sources), "eval": {"every": 2}}
    # Anything that would run uncompiled, because too much was compiled before, is an error.
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        outcome = quietly(settings(model=SMALL, loss_kernel=kernel, probe=True, trainer=COMPILED, **keys))
    assert outcome.steps == 4
    assert len(losses(outcome)) == 4
    assert counters["stats"]["unique_graphs"] > 0
