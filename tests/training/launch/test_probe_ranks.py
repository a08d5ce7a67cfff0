"""The probe of a sharded model, where every forward pass is collective and ranks have different documents."""

import json
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import json, sys
sys.path.append({root!r})
from torch.distributed.fsdp import fully_shard
from tests.training.probe.architectures import batch, build
from packtrain.training.attention import use_packed
from packtrain.training.probe import probe
torch.distributed.init_process_group("gloo")
model = build({kind!r})
if {kind!r} != "gpt_oss":
    use_packed(model)
for layer in model.model.layers:
    fully_shard(layer)
fully_shard(model)
mine = batch(*([5, 9, 3] * (1 + 2 * number)), seed=number)
report = probe(model, device="cpu", batch=mine)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):  # and training goes on as ever
    model(**mine).loss.backward()
    optimizer.step()
print(json.dumps(sorted(check.name for check in report.checks if not check.passed)))
torch.distributed.barrier()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "failed"), [("gpt_oss", True), ("llama", False)])
def test_two_ranks(run_ranks: Any, environs: Any, kind: str, failed: bool) -> None:
    for one in run_ranks(PROGRAM.format(root=str(Path(__file__).parents[3]), kind=kind), environs(2)):
        assert ("isolation" in json.loads(one.out)) == failed, one
