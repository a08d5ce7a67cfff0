"""One process of two that use torch's own context parallelism: `torch_context_rank.py RANK RENDEZVOUS DATASET OUT`.

Saves the loss of one process alone for the first batch of a dataset, and what this process computes for its part with
torch's attention (forward only, because torch 2.13 has no backward pass of it on CPUs). Also how torch divides the
batch, and how Megatron divides one document, if it is installed.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from packtrain.training import PackedLoader, cp_part
from packtrain.training.attention import use_packed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import _context_parallel as torch_cp
from torch.distributed.tensor.experimental._context_parallel._attention import _create_cp_block_mask
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

sys.path.append(str(Path(__file__).parents[2]))
from tests.training.context_rank import model_of, places

SIZE = 2


class Flex(torch.nn.Module):  # type: ignore[misc]  # torch is not followed
    """Torch's hooks for context parallelism are those of modules."""

    def forward(self, query: Any, key: Any, value: Any, block_mask: Any) -> Any:
        return flex_attention(query, key, value, block_mask=block_mask)


class Order(torch_cp._LoadBalancer):  # type: ignore[misc]
    """The loader's parts, one after another: torch gives the r-th part of this order to rank r."""

    def __init__(self, bounds: torch.Tensor) -> None:
        parts = [places(bounds, rank, SIZE, "thd") for rank in range(SIZE)]
        self.order = torch.cat(parts)

    def _generate_indices(self, restore: bool = False) -> torch.Tensor:
        return (self.order.argsort() if restore else self.order)[None]


def attention(mesh: Any, bounds: torch.Tensor, order: Order) -> Any:
    """Attention as torch divides it: each process's queries with all keys, by document."""
    documents = torch.repeat_interleave(torch.arange(len(bounds) - 1), bounds.diff())
    total = int(bounds[-1])
    torch_cp._attention._compiled_create_block_mask = create_block_mask  # compiling it needs a C++ compiler
    mask = _create_cp_block_mask(
        lambda b, h, q, k: (documents[q] == documents[k]) & (q >= k), 1, 1, total, total, mesh, order
    )
    flex = Flex()
    kind = torch_cp._ContextParallel.AttentionType.FLEX
    torch_cp._ContextParallel(seq_dim=2, attention_type=kind)._apply(flex, mesh)

    def forward(module: Any, query: Any, key: Any, value: Any, unused: Any, **kwargs: Any) -> tuple[Any, None]:
        groups = query.shape[1] // key.shape[1]
        key, value = (each.repeat_interleave(groups, 1) for each in (key, value))
        return flex(query, key, value, block_mask=mask).transpose(1, 2), None

    return forward


def divided_by_megatron(rank: int) -> list[int] | None:
    """Which tokens of a document of 24 Megatron gives to this process; None if it is not installed."""
    try:
        from megatron.core.utils import get_batch_on_this_cp_rank
    except ImportError:
        return None
    batch = get_batch_on_this_cp_rank({"tokens": torch.arange(24)[None]}, cp_group=torch.distributed.group.WORLD)
    found: list[int] = batch["tokens"][0].tolist()
    return found


def main(rank: int, rendezvous: str, dataset: str, out: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=SIZE)
    mesh = init_device_mesh("cpu", (SIZE,))
    # Torch's mask wants a multiple of 128 tokens for each process, which rows of one length give.
    options: dict[str, Any] = {"rows_per_step": 1, "balance": None, "prefetch": 0, "static_shapes": True}
    whole = next(iter(PackedLoader(dataset, rank=0, world_size=1, **options)))
    part = cp_part(whole, rank, SIZE, "thd")
    model = model_of(int(whole["input_ids"].max()) + 1)
    items = torch.tensor(int((whole["labels"] != -100).sum()))
    order = Order(whole["cu_seq_lens_q"])
    names = ["input_ids", "labels", "position_ids"]
    divided = torch_cp._context_parallel_shard(mesh, [whole[name] for name in names], [1] * len(names), order)
    AttentionInterface.register("torch_context", attention(mesh, whole["cu_seq_lens_q"], order))
    AttentionMaskInterface.register("torch_context", lambda *args, **kwargs: None)
    model.set_attn_implementation("torch_context")
    with torch.no_grad():
        shared = model(**part, num_items_in_batch=items).loss
        use_packed(model)
        alone = model(**whole, num_items_in_batch=items).loss
    torch.save(
        {
            "alone": alone,
            "shared": shared,
            "loader": [part[name] for name in names],
            "torch": divided,
            "document": places(torch.tensor([0, 24]), rank, SIZE, "thd").tolist(),
            "megatron": divided_by_megatron(rank),
        },
        f"{out}/{rank}.pt",
    )
    torch.distributed.barrier()


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
