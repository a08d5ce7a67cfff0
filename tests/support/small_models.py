"""Small models with random weights in folders: whole with a tokenizer, and as a sharded checkpoint."""

import json
import shutil
from pathlib import Path
from typing import Any

from packtrain.pipeline import demo

TOKENIZER = Path(demo.__file__).parent / "tokenizer"
"""3,200 tokens, ChatML."""


def write_model(folder: Path, *, tokenizer: Path = TOKENIZER, vocabulary: int = 3200, **changes: Any) -> Path:
    """A Llama of two layers whose scores differ enough that texts vary; the same every time."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {
        "vocab_size": vocabulary, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048, **changes,
    }  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = LlamaForCausalLM(LlamaConfig(**sizes))
        with torch.no_grad():
            for weight in model.parameters():
                if weight.ndim > 1:
                    weight.mul_(4)
    model.save_pretrained(folder)
    for path in tokenizer.iterdir():
        shutil.copy(path, folder)
    return folder


def write_sharded(model: Path, folder: Path) -> Path:
    """The model as a checkpoint of torch.distributed, as accelerate lays it out, with the configuration beside it."""
    from torch.distributed.checkpoint import save
    from transformers import AutoModelForCausalLM

    weights = AutoModelForCausalLM.from_pretrained(model).state_dict()
    folder.mkdir(parents=True)
    save({"model": weights}, checkpoint_id=folder / "pytorch_model_fsdp_0", no_dist=True)
    shutil.copy(model / "config.json", folder)
    return folder


def add_trained(folder: Path) -> None:
    """What a training leaves, `trained/model` and `trained/checkpoint-2`, and `prompts.jsonl`, three prompts."""
    write_sharded(write_model(folder / "trained" / "model"), folder / "trained" / "checkpoint-2")
    rows = [{"id": f"p{row}", "row": row, "prompt": [{"role": "user", "content": f"Print {row}."}]} for row in range(3)]
    (folder / "prompts.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
