"""The output folder trains as it is: TRL opens it, and its first loss is that of the documents one by one."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import load_from_disk
from packtrain.schemas.rows import IGNORE_INDEX
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from tests import kit

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def tiny_llama() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(AutoTokenizer.from_pretrained(kit.demo_tokenizer())),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        attn_implementation="sdpa",
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def loss_of(model: Any, ids: list[int], labels: list[int]) -> float:
    """The summed loss of one document: what the logits at each place say of the label one place later."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1].double()
    return float(
        torch.nn.functional.cross_entropy(logits, torch.tensor(labels[1:]), ignore_index=IGNORE_INDEX, reduction="sum")
    )


@pytest.mark.slow
def test_three_steps_of_trl(tmp_path: Path) -> None:
    from trl import SFTConfig, SFTTrainer

    packed = kit.packed(kit.configure(tmp_path, "chats", "pairs", truncate={"overlong": "drop"}))
    assert packed.table().num_rows > 24, "three steps of rows"
    arguments = SFTConfig(
        output_dir=str(tmp_path / "trained"),
        packing=False,
        padding_free=True,
        max_length=None,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_steps=3,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        logging_steps=1,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    seen: list[dict[str, Any]] = []

    class Spying(SFTTrainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
            seen.append(dict(inputs))
            return super().compute_loss(model, inputs, *args, **kwargs)

    dataset, tokenizer = load_from_disk(str(packed.folder)), AutoTokenizer.from_pretrained(kit.demo_tokenizer())
    trainer = Spying(tiny_llama(), arguments, train_dataset=dataset, processing_class=tokenizer)
    trainer.train()

    assert len(seen) == 6
    alone = tiny_llama().eval()
    loss = labels = 0.0
    for inputs in seen[:2]:
        ids, found = inputs["input_ids"][0].tolist(), inputs["labels"][0].tolist()
        bounds = inputs["cu_seq_lens_q"].tolist()
        loss += sum(loss_of(alone, ids[a:b], found[a:b]) for a, b in pairwise(bounds))
        labels += sum(label != IGNORE_INDEX for label in found)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[0] == pytest.approx(loss / labels, rel=1e-4)
    assert losses[2] < losses[0]
