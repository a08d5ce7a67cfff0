"""Measures what recording the losses of documents costs a training: time of a step, and bytes of a document.

    PACKTRAIN_REALDATA=... python tests/bench/bench_losses.py [--steps 40]

Prints Markdown tables. GSM8K's conversations are packed with the demo's tokenizer into rows of 512 tokens; a step
has four rows in two micro-batches, on one thread. Every second step of a training is made without the record, so that
what else the machine does meets both alike; a second training leaves it out in the other steps, so that both see the
same rows. Figures are medians over the steps of both.

- *plain*: all logits at once, whose tokens' losses are there anyway;
- *own chunks*: checkpointed chunks, which give them at no further multiplication;
- *torch's function*: gives only their sum, so that `document_losses: true` multiplies the head's weights once more.

Then what is done in a step of a larger training: 32 rows of 4,096 tokens, without a model.
"""

import argparse
import logging
import os
import shutil
import statistics
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from packtrain.pipeline import demo
from packtrain.pipeline.run.driver import run
from packtrain.training.loader import PackedLoader
from packtrain.training.losses.loss_file import FOLDER
from packtrain.training.trainer import fused_loss
from packtrain.training.trainer.config import ModelConfig
from packtrain.training.trainer.document_losses import DocumentLosses
from packtrain.training.trainer.loss import targets
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


class EverySecond(TrainerCallback):  # type: ignore[misc]  # transformers is not followed
    """Leaves the record out of every second step, and notes wall and CPU seconds of both kinds."""

    def __init__(self) -> None:
        self.trainer: Any = None
        self.begins_with = True
        self.seconds: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        self._last: tuple[float, float] | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """See transformers."""
        self._losses, self._last = self.trainer.losses, None
        self._record(self.begins_with)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A step lasts until the next one ends."""
        now, with_it = (time.perf_counter(), time.process_time()), self.trainer.losses is not None
        if self._last is not None and state.global_step > FIRST:
            self.seconds[with_it].append((now[0] - self._last[0], now[1] - self._last[1]))
        self._record(not with_it)
        self._last = now

    def _record(self, wanted: bool) -> None:
        self.trainer.losses = self._losses if wanted else None
        if self.trainer.forward.fused is not None:
            self.trainer.forward.fused.gives_token_losses = wanted


def pack(root: Path, folder: Path, length: int) -> Path:
    """GSM8K, packed."""
    out = folder / f"packed-{length}"
    run(
        {
            "out": str(out),
            "tokenizer": {"path": str(Path(demo.__file__).parent / "tokenizer")},
            "sources": [{"name": "gsm8k", "path": str(root / "chat" / "gsm8k_train.jsonl")}],
            "mask": "assistant",
            "truncate": {"max_length": length},
            "run": {"workers": 2, "report": False},
        }
    )
    return out


def seconds_of(packed: Path, out: Path, model: str, kernel: str, number: int) -> dict[bool, list[float]]:
    """Median wall and CPU milliseconds of a step, without the record and with it."""
    config = ModelConfig(config={"model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 4,
                                 "max_position_embeddings": 1024, **MODELS[model]})  # fmt: skip
    arguments = TrainingArguments(
        str(out), max_steps=number + FIRST, logging_steps=1000, save_strategy="no", report_to=[], use_cpu=True,
        learning_rate=1e-3, disable_tqdm=True,
    )  # fmt: skip
    times = EverySecond()
    function = functional.linear_cross_entropy
    if kernel == "own chunks":
        del functional.linear_cross_entropy
    try:
        for times.begins_with in (True, False):
            times.trainer = trainer = PackedTrainer(
                load_model(config, Path.cwd(), 0), arguments, data=packed, rows_per_step=4, rows_per_device=2,
                probe=False, loss_kernel=KERNELS[kernel], document_losses=True, say=None, callbacks=[times],
            )  # fmt: skip
            fused = trainer.forward.fused
            assert (kernel == "torch's function") == (fused is not None and fused._kernel is fused_loss._torch_kernel)
            trainer.train()
    finally:
        functional.linear_cross_entropy = function
    return {
        with_it: [statistics.median(one) * 1e3 for one in zip(*found, strict=True)]
        for with_it, found in times.seconds.items()
    }


def parts(packed: Path, out: Path, number: int) -> list[str]:
    """CPU milliseconds of what is done in and after a step, and bytes of a document."""
    loader = PackedLoader(packed, rows_per_step=32, epochs=20, accumulate=4)
    began = time.process_time()
    losses = DocumentLosses(loader, out)
    spent: dict[str, list[float]] = {"open": [time.process_time() - began], "note": [], "add up": [], "collect": []}
    losses.begin(0, writes=True)
    batches, documents = iter(loader), 0
    for step in range(1, number + 1):
        drawn = [(batch, targets(batch)) for batch in islice(batches, 4)]
        documents += sum(len(batch["cu_seq_lens_q"]) - 1 for batch, _ in drawn)
        began = time.process_time()
        losses.drew(step, (step - 1) * 32, drawn)
        spent["note"].append(time.process_time() - began)
        for batch, wanted in drawn:
            tokens = torch.rand(len(wanted))
            began = time.process_time()
            losses.keep(batch, wanted)(tokens)
            spent["add up"].append(time.process_time() - began)
        if step % 10 == 0:
            began = time.process_time()
            losses.collect()
            spent["collect"].append(time.process_time() - began)
    losses.end()
    size = sum(path.stat().st_size for path in (out / FOLDER).iterdir())
    times = [f"{statistics.median(one) * 1e3:.2f}" for one in spent.values()]
    return [f"{documents / number:.0f}", *times, f"{size / documents:.1f}"]


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    folder = Path(tempfile.mkdtemp(prefix="bench-losses-"))
    try:
        head = ["documents a step", "open", "note a step", "add up a batch", "collect ten steps", "bytes a document"]
        print_table(head, [parts(pack(realdata(), folder, 4096), folder / "parts", given.steps)], left=0)
        packed = pack(realdata(), folder, 512)
        for model in MODELS:
            table = []
            for kernel in KERNELS:
                found = seconds_of(packed, folder / "out", model, kernel, given.steps)
                (wall, cpu), (wall_with, cpu_with) = found[False], found[True]
                times = [f"{one:.1f}" for one in (wall, wall_with, cpu, cpu_with)]
                table.append([model, kernel, *times, f"{cpu_with / cpu - 1:+.1%}"])
            head = ["model", "loss", "ms a step", "with the record", "CPU ms a step", "with the record", "CPU"]
            print_table(head, table, left=2)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
