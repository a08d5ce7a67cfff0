"""One process of a context-parallel group: `context_rank.py RANK SIZE LAYOUT RENDEZVOUS DATASET OUT`.

Saves what one process alone computes for the first batch of a dataset, and what this process computes for its part.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from packtrain.schemas.alignment import ParallelLayout
from packtrain.training import PackedLoader, cp_part
from packtrain.training.attention import use_packed
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM
from transformers.masking_utils import AttentionMaskInterface

sys.path.append(str(Path(__file__).parents[2]))
from tests.support.ring_attention import Ring, ulysses


def model_of(vocabulary: int) -> Any:
    torch.manual_seed(5)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, num_key_value_heads=2, **sizes)).double()


def places(bounds: torch.Tensor, rank: int, size: int, layout: str) -> torch.Tensor:
    """Which tokens of a sequence a device holds."""
    whole = {"input_ids": torch.arange(int(bounds[-1]))[None], "cu_seq_lens_q": bounds}
    found: torch.Tensor = cp_part(whole, rank, size, layout)["input_ids"][0]
    return found


def attention(layout: ParallelLayout, whole: dict[str, Any], size: int) -> Any:
    bounds = whole["cu_seq_lens_q"]
    documents = torch.repeat_interleave(torch.arange(len(bounds) - 1), bounds.diff())
    parts = [places(bounds, rank, size, layout) for rank in range(size)]

    def forward(module: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> tuple[Any, None]:
        groups = query.shape[1] // key.shape[1]
        q, k, v = query[0], *(each[0].repeat_interleave(groups, 0) for each in (key, value))
        out = ulysses(q, k, v, bounds.tolist()) if layout == "ulysses" else Ring.apply(q, k, v, parts, documents)
        return out.transpose(0, 1).unsqueeze(0), None

    return forward


def computed(model: Any, batch: dict[str, Any], items: int) -> dict[str, torch.Tensor]:
    """The loss and the gradients of all weights."""
    model.zero_grad()
    loss = model(**batch, num_items_in_batch=torch.tensor(items)).loss
    loss.backward()
    return {"loss": loss.detach(), **{name: value.grad.clone() for name, value in model.named_parameters()}}


def influence(model: Any, batch: dict[str, Any], whole: dict[str, Any], mine: torch.Tensor) -> torch.Tensor:
    """(D, D) the largest gradient of document d's loss with respect to this process's tokens of document e."""
    bounds = whole["cu_seq_lens_q"]
    owner = torch.repeat_interleave(torch.arange(len(bounds) - 1), bounds.diff())[mine]
    found = torch.zeros(len(bounds) - 1, len(bounds) - 1)
    for d in range(len(bounds) - 1):
        targets = torch.where(owner == d, batch["shift_labels"], torch.full_like(batch["shift_labels"], -100))
        embedded = model.get_input_embeddings()(batch["input_ids"]).detach().requires_grad_()
        rest = {key: value for key, value in batch.items() if key not in ("input_ids", "shift_labels")}
        one = {**rest, "inputs_embeds": embedded, "shift_labels": targets, "num_items_in_batch": torch.tensor(1)}
        model(**one).loss.backward()
        for e in range(len(bounds) - 1):
            found[d, e] = embedded.grad[0, owner == e].abs().max() if (owner == e).any() else 0.0
    return found


def main(rank: int, size: int, layout: ParallelLayout, rendezvous: str, dataset: str, out: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size)
    options: dict[str, Any] = {"rows_per_step": 6, "balance": None, "prefetch": 0}
    whole = next(iter(PackedLoader(dataset, rank=0, world_size=1, **options)))
    part = cp_part(whole, rank, size, layout)
    model = model_of(int(whole["input_ids"].max()) + 1)
    items = int((whole["labels"] != -100).sum())
    AttentionInterface.register("context", attention(layout, whole, size))
    AttentionMaskInterface.register("context", lambda *args, **kwargs: None)
    model.set_attn_implementation("context")
    shared = computed(model, part, items)
    mine = places(whole["cu_seq_lens_q"], rank, size, layout)
    leaks = influence(model, part, whole, mine)
    use_packed(model)
    torch.save({"alone": computed(model, whole, items), "shared": shared, "leaks": leaks}, f"{out}/{rank}.pt")
    torch.distributed.barrier()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], *sys.argv[4:])  # type: ignore[arg-type]
