"""A model and rows that are always the same, and the losses that docs/trainers.md says they have."""

import re
from collections.abc import Callable
from pathlib import Path

import packtrain
import pytest
import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

Documented = Callable[[str, float, float], None]
_ROW = re.compile(r"\| (?P<trainer>[^|]+) \|.*\| (?P<loss>\d+\.\d+), (?P<alone>\d+\.\d+) \|")
_MARKUP = re.compile(r"\[|\]\([^)]*\)|`")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with the demo's tokenizer, and always the same weights."""
    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = AutoTokenizer.from_pretrained(Path(packtrain.__file__).parent / "pipeline" / "demo" / "tokenizer")
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(Qwen3Config(vocab_size=len(tokenizer), num_key_value_heads=2, head_dim=8, **sizes))
    for weight in model.parameters():  # initial weights are so small that errors would not show
        weight.data.mul_(6 if weight.ndim > 1 else 1)
    for part in (model, tokenizer):
        part.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def documented() -> Documented:
    """`documented(trainer, loss, alone)`: the table says these figures, and the loss is that of the documents alone."""
    page = (Path(packtrain.__file__).parent / "docs" / "trainers.md").read_text()
    figures = {_MARKUP.sub("", row["trainer"]).lower(): (row["loss"], row["alone"]) for row in _ROW.finditer(page)}

    def check(trainer: str, loss: float, alone: float) -> None:
        assert loss == pytest.approx(alone, abs=5e-4)  # some trainers print four digits
        (figure,) = [figure for name, figure in figures.items() if name.startswith(trainer.lower())]
        assert tuple(map(float, figure)) == pytest.approx((loss, alone), abs=1e-3)

    return check
