"""One rank of a probe over gloo: `torchrun ... ranks.py ddp|fsdp auto|eager`. Prints the report as JSON."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from packtrain.training.attention import use_packed
from packtrain.training.batch import flatten
from packtrain.training.probe import StepGuard, compare_first_batch, probe

if TYPE_CHECKING:
    from tests.training.probe.architectures import build, row
else:
    sys.path.append(str(Path(__file__).parent))
    from architectures import build, row


def main(wrap: str, kind: str) -> None:
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    model: Any = build(kind)
    if kind != "gpt_oss":
        use_packed(model)
    if wrap == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.fsdp import fully_shard

        for layer in model.model.layers:
            fully_shard(layer)
        fully_shard(model)
    report = probe(model, device="cpu")
    first = relative = None
    if kind != "gpt_oss":
        # Ranks have different numbers of documents, and every forward pass is collective.
        batch = flatten([row(*([5, 9, 3] * (1 + 2 * rank)), seed=rank)])
        first = compare_first_batch(model, batch)
        relative = first.relative
        with StepGuard(model, report.calls).step(batch):
            loss = model(**batch).loss
        loss.backward()  # and training goes on as ever
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.step()
        model(**batch).loss.backward()
    Path(sys.argv[3], f"{rank}.json").write_text(
        json.dumps({**report.to_json(), "relative": relative, "documents": first and first.documents})
    )
    torch.distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo threads of a DDP model sometimes abort an orderly end


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
