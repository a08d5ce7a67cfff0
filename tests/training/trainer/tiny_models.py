"""Tiny models with random weights, of real architectures."""

from typing import Any

import pytest
import torch
import transformers
from packtrain.training.targets import find_targets
from packtrain.training.trainer.heads import FusedHead
from packtrain.training.trainer.loss import Forward

needs_fused_loss = pytest.mark.skipif(
    not hasattr(torch.nn.functional, "linear_cross_entropy"), reason="this torch has no linear_cross_entropy"
)
SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
MORE: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Gemma2": {"head_dim": 8, "sliding_window": 8, "final_logit_softcapping": 0.5, "query_pre_attn_scalar": 8},
    "Granite": {"logits_scaling": 3.0},
    "Cohere": {"logit_scale": 0.25},
    "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "output_router_logits": True},
    "Phi": {},
    "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "vocab_size": 97},
}


def make(name: str, *, attention: str = "eager", dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A `{name}ForCausalLM` in evaluation mode, the same every time."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = {} if name == "GPT2" else SIZES
    config = getattr(transformers, f"{name}Config")(**{**sizes, **MORE[name], **changes})
    config._attn_implementation = attention
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():  # initial weights are so small that errors would not show
            if parameter.ndim > 1:
                parameter.mul_(6)
    return model.to(dtype).eval()


def batch(length: int = 40, vocabulary: int = 97, *, seed: int = 0, trained: float = 0.5) -> dict[str, Any]:
    """One sequence with labels at a share of its places."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, vocabulary, (1, length), generator=generator)
    labels = torch.where(torch.rand((1, length), generator=generator) < trained, ids, -100)
    labels[:, 0] = -100
    return {
        "input_ids": ids,
        "labels": labels,
        "position_ids": torch.arange(length)[None],
        "use_cache": False,
    }


def loss_of(model: Any, fused: FusedHead | None = None, *, items: int | None = None, **inputs: Any) -> Any:
    """The model's loss as the trainer computes it: the sum over trained tokens, over `items` or their number."""
    wanted = find_targets(inputs)
    units = torch.tensor(max(1, len(wanted.tokens)) if items is None else items)
    bare = getattr(model, "_orig_mod", model)
    return Forward(bare, fused=fused).loss(model, inputs, wanted, units, share=1.0)
