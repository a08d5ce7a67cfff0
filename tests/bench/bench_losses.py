"""Measures what recording the losses of documents costs a training: time of a step, and bytes of a document.

    PACKTRAIN_REALDATA=... python tests/bench/bench_losses.py [--steps 20] [--rounds 2]

Prints a Markdown table. GSM8K's conversations are packed with the demo's tokenizer into rows of 512 tokens; a step
has four rows in two micro-batches, on one thread, and every tenth is logged. Each model is trained with and without the
record in turns, from the same start; figures are medians over the steps of all rounds, the first two of each left out.
CPU seconds hardly depend on what else the machine does.

- *plain*: all logits at once, whose tokens' losses are there anyway;
- *own chunks*: checkpointed chunks, which give them at no further multiplication;
- *torch's function*: gives only their sum, so that `document_losses: true` multiplies the head's weights once more.
"""

import argparse
import logging
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from packtrain.pipeline import demo
from packtrain.pipeline.run.driver import run
from packtrain.training.losses.loss_file import FOLDER, read_losses
from packtrain.training.trainer import fused_loss
from packtrain.training.trainer.config import ModelConfig
from packtrain.training.trainer.model import load_model
from packtrain.training.trainer.trainer import PackedTrainer
from torch.nn import functional
from transformers import TrainerCallback, TrainingArguments

if TYPE_CHECKING:
    from tests.bench.corpus import print_table, realdata
else:
    from corpus import print_table, realdata  # a script finds its neighbour by its own folder

MODELS = {
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 3200},
    "larger": {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4, "vocab_size": 8000},
}
KERNELS = {"plain": "none", "own chunks": "chunked", "torch's function": "chunked"}
FIRST = 2
"""Steps at the start of a training that do not count."""


class StepTimes(TrainerCallback):  # type: ignore[misc]  # transformers is not followed
    """Wall and CPU seconds of each step, its logging included."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, float]] = []
        self._last: tuple[float, float] | None = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A step lasts until the next one begins."""
        now = time.perf_counter(), time.process_time()
        if self._last is not None:
            self.steps.append((now[0] - self._last[0], now[1] - self._last[1]))
        self._last = now


def pack(root: Path, folder: Path) -> Path:
    """GSM8K, packed."""
    run(
        {
            "out": str(folder / "packed"),
            "tokenizer": {"path": str(Path(demo.__file__).parent / "tokenizer")},
            "sources": [{"name": "gsm8k", "path": str(root / "chat" / "gsm8k_train.jsonl")}],
            "mask": "assistant",
            "truncate": {"max_length": 512},
            "run": {"workers": 2, "report": False},
        }
    )
    return folder / "packed"


def steps(packed: Path, out: Path, model: str, kernel: str, wanted: bool, number: int) -> list[tuple[float, float]]:
    """Seconds of the steps of one training."""
    shutil.rmtree(out, ignore_errors=True)
    config = ModelConfig(config={"model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 4,
                                 "max_position_embeddings": 1024, **MODELS[model]})  # fmt: skip
    arguments = TrainingArguments(
        str(out), max_steps=number + FIRST, logging_steps=10, save_strategy="no", report_to=[], use_cpu=True,
        learning_rate=1e-3, disable_tqdm=True,
    )  # fmt: skip
    times = StepTimes()
    function = functional.linear_cross_entropy
    if kernel == "own chunks":
        del functional.linear_cross_entropy
    try:
        trainer = PackedTrainer(
            load_model(config, Path.cwd(), 0), arguments, data=packed, rows_per_step=4, rows_per_device=2, probe=False,
            loss_kernel=KERNELS[kernel], document_losses=wanted, say=None, callbacks=[times],
        )  # fmt: skip
        assert (trainer.losses is not None) == wanted
        fused = trainer.forward.fused
        assert (kernel == "torch's function") == (fused is not None and fused._kernel is fused_loss._torch_kernel)
        trainer.train()
    finally:
        functional.linear_cross_entropy = function
    return times.steps[FIRST:]


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    folder = Path(tempfile.mkdtemp(prefix="bench-losses-"))
    try:
        packed = pack(realdata(), folder)
        for model in MODELS:
            table = []
            for kernel in KERNELS:
                seconds: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
                for _ in range(given.rounds):
                    for wanted in (False, True):
                        seconds[wanted] += steps(packed, folder / "out", model, kernel, wanted, given.steps)
                medians = {w: [statistics.median(one) * 1e3 for one in zip(*seconds[w], strict=True)] for w in seconds}
                (wall, cpu), (wall_with, cpu_with) = medians[False], medians[True]
                record = read_losses(folder / "out").table
                size = sum(path.stat().st_size for path in (folder / "out" / FOLDER).iterdir())
                table.append(
                    [
                        model, kernel, f"{wall:.1f}", f"{wall_with:.1f}", f"{cpu:.1f}", f"{cpu_with:.1f}",
                        f"{cpu_with / cpu - 1:+.1%}", f"{record.num_rows / (given.steps + FIRST):.0f}",
                        f"{size / record.num_rows:.1f}",
                    ]
                )  # fmt: skip
            head = [
                "model",
                "loss",
                "ms a step",
                "with",
                "CPU ms a step",
                "with",
                "CPU",
                "documents a step",
                "bytes each",
            ]
            print_table(head, table)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
