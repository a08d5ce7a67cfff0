"""One rank of a probe over gloo: `torchrun ... ranks.py ddp|fsdp auto|eager`. Prints the report as JSON."""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from packtrain.training.attention import use_packed
from packtrain.training.probe import probe

if TYPE_CHECKING:
    from tests.training.probe.architectures import batch, build
else:
    sys.path.append(str(Path(__file__).parent))
    from architectures import batch, build


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
    # Ranks have different numbers of documents, and every forward pass is collective.
    mine = batch(*([5, 9, 3] * (1 + 2 * rank)), seed=rank)
    report = probe(model, device="cpu", batch=mine)
    if kind != "gpt_oss":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):  # and training goes on as ever
            model(**mine).loss.backward()
            optimizer.step()
    Path(sys.argv[3], f"{rank}.json").write_text(json.dumps(report.to_json()))
    torch.distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo threads of a DDP model sometimes abort an orderly end


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
