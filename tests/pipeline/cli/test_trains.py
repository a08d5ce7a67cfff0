"""The output folder trains as it is: TRL opens it, and a packed step is the sum of its documents' steps."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import packtrain
import pytest
import torch
from datasets import load_from_disk
from packtrain.schemas.rows import IGNORE_INDEX
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

ReadRows = Callable[..., list[dict[str, Any]]]
LENGTH = 128

WORDS = ("the", "mules", "left", "valley", "before", "sun", "was", "up", "nobody", "had", "told", "them", "how", "far")


def rows(count: int) -> list[dict[str, Any]]:
    """Chats of one to three turns whose answers are of many lengths."""
    chance = np.random.default_rng(5)

    def say(longest: int) -> str:
        return " ".join(chance.choice(WORDS, int(chance.integers(1, longest))))

    return [
        {
            "messages": [
                {"role": role, "content": say(12)}
                for _ in range(int(chance.integers(1, 4)))
                for role in ("user", "assistant")
            ]
        }
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def packed(tiny_tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trains")
    source = folder / "chats.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows(150)))
    manifest = packtrain.run(
        {
            "out": str(folder / "out"),
            "tokenizer": {"path": str(tiny_tokenizer), "engine": "tokenizers"},
            "sources": [{"name": "chats", "format": "messages", "path": str(source)}],
            "truncate": {"max_length": LENGTH, "overlong": "drop"},
            "run": {"workers": 1, "report": False},
        }
    )
    assert 20 < manifest.splits["train"].rows < 75  # packed, and more than three steps of rows
    return folder / "out"


def tiny_llama(tokenizer: Path, attention: str) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(AutoTokenizer.from_pretrained(tokenizer)),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
        attn_implementation=attention,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def loss_and_gradients(model: Any, losses: list[Any], labels: int) -> tuple[float, dict[str, Any]]:
    """The sum of the losses over the number of labels, and what it asks of every parameter."""
    model.zero_grad()
    total = torch.stack(losses).sum() / labels
    total.backward()
    return float(total.detach()), {name: one.grad.clone() for name, one in model.named_parameters()}


def token_losses(model: Any, **batch: list[int]) -> Any:
    """The summed loss of one sequence: what the logits at each place say of the label one place later."""
    labels = torch.tensor(batch.pop("labels"))
    tensors = {name: torch.tensor([values]) for name, values in batch.items()}
    logits = model(**tensors, use_cache=False).logits[0]
    return torch.nn.functional.cross_entropy(
        logits[:-1].double(), labels[1:], ignore_index=IGNORE_INDEX, reduction="sum"
    )


def test_three_steps_of_trl(packed: Path, tiny_tokenizer: Path, tmp_path: Path, read_rows: ReadRows) -> None:
    """TRL takes the folder as it is; the loss it reports first is the token-weighted loss of the documents."""
    from trl import SFTConfig, SFTTrainer

    dataset = load_from_disk(str(packed))
    rows = read_rows(packed)
    assert dataset[:]["input_ids"] == [row["input_ids"] for row in rows]
    model = tiny_llama(tiny_tokenizer, "sdpa")
    args = SFTConfig(
        output_dir=str(tmp_path),
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

    trainer = Spying(model, args, train_dataset=dataset, processing_class=AutoTokenizer.from_pretrained(tiny_tokenizer))
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    expected_model = tiny_llama(tiny_tokenizer, "sdpa").eval()
    trainer.train()

    assert trainer.state.global_step == 3
    assert len(seen) == 6
    by_ids = {tuple(row["input_ids"]): row for row in rows}
    first: list[Any] = []
    labels = 0
    for index, inputs in enumerate(seen):
        assert "attention_mask" not in inputs
        ids, places = inputs["input_ids"][0].tolist(), inputs["position_ids"][0].tolist()
        starts = [place for place, position in enumerate(places) if position == 0]
        assert inputs["cu_seq_lens_q"].tolist() == [*starts, len(ids)]
        # The batch is four of our rows, with our boundaries and our labels.
        done, mine = 0, []
        while done < len(ids):
            row = next(row for key, row in by_ids.items() if tuple(ids[done : done + len(key)]) == key)
            mine.append(row)
            done += len(row["input_ids"])
        assert len(mine) == 4
        assert inputs["labels"][0].tolist() == [label for row in mine for label in row["labels"]]
        assert places == [position for row in mine for position in row["position_ids"]]
        if index < 2:
            for begin, end in pairwise([*starts, len(ids)]):
                piece = inputs["labels"][0, begin:end].tolist()
                labels += sum(label != IGNORE_INDEX for label in piece)
                with torch.no_grad():
                    first.append(float(token_losses(expected_model, input_ids=ids[begin:end], labels=piece)))
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 3
    assert losses[0] == pytest.approx(sum(first) / labels, rel=1e-4)
    assert losses[2] < losses[0]
    moved = [name for name, one in model.named_parameters() if not torch.equal(one, before[name])]
    assert len(moved) == len(before)
