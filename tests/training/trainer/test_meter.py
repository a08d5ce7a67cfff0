"""What the meter says of a training, against counting by hand."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from packtrain.training import PackedLoader  # noqa: E402
from packtrain.training.loader.collate import FixedShape, fix_shape, flatten  # noqa: E402
from packtrain.training.shards.arrow_shard import RowSpan  # noqa: E402
from packtrain.training.trainer.flops import ModelFlops  # noqa: E402
from packtrain.training.trainer.meter import Meter, document_lengths  # noqa: E402

from tests.support import warm  # noqa: E402
from tests.training.trainer.tiny_models import make  # noqa: E402


def row(*lengths: int, trained: int = 1) -> RowSpan:
    """Documents in which the last `trained` tokens are."""
    labels = np.concatenate([np.r_[np.full(n - trained, -100), np.arange(trained) + 7] for n in lengths])
    positions = np.concatenate([np.arange(n) for n in lengths])
    return RowSpan(whole(np.arange(sum(lengths)) + 5), whole(labels), whole(positions), whole(np.array(lengths)))


def whole(numbers: NDArray[np.int64]) -> NDArray[np.int32]:
    return numbers.astype(np.int32)


PER_TOKEN = ModelFlops(1.0, 0.0, 0.0, head_trained=False, attention=())
"""A model whose cost is tokens."""


def test_lengths_of_the_same_documents_in_every_form() -> None:
    rows = [row(3, 5), row(8), row(2, 2)]
    for batch, shape in (
        (flatten(rows), None),
        (fix_shape(rows, FixedShape(8, 2)), FixedShape(8, 2)),
        (fix_shape(rows, FixedShape(10, 4, 99)), FixedShape(10, 4, 99)),
    ):
        assert document_lengths(batch, shape).tolist() == [3, 5, 8, 2, 2]


def test_an_untrained_document_that_fills_a_row_is_not_padding() -> None:
    six, untrained, zero = (whole(np.full(4, value)) for value in (6, -100, 0))
    document, shape = RowSpan(six, untrained, zero, whole(np.array([4]))), FixedShape(4, 1)
    assert document_lengths(fix_shape([document], shape), shape).tolist() == [4]


class Clock:
    """Seconds that a test decides."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def one_step(meter: Meter, clock: Clock, batches: list[Any], *, wait: float = 0.0, work: float = 1.0) -> None:
    """As the Trainer does it: draw all micro-batches, begin, work, end."""
    for batch in batches:
        clock.now += wait
        meter.batch(batch, wait)
    meter.on_step_begin(None, None, None)
    clock.now += work
    meter.on_step_end(None, None, None)


def test_figures_by_hand() -> None:
    clock, flops = Clock(), ModelFlops.of(make("Llama"))
    meter = Meter(flops, 10, peak=1e6, clock=clock)
    clock.now += 1000  # loading and probing
    packed = [flatten([row(3, 5)]), flatten([row(10, trained=4)])]
    one_step(meter, clock, packed, wait=0.5, work=3)
    one_step(meter, clock, packed, work=4)
    found = meter.collect()
    assert found["tokens_per_second"] == 36 / 8
    assert found["trained_tokens_per_second"] == 12 / 8
    assert found["fill"] == 36 / 40
    assert found["trained_share"] == 12 / 36
    assert found["loader_wait"] == 1 / 8
    assert found["tokens_seen"] == 36
    assert "balance" not in found
    needed = 2 * flops.of_lengths(np.array([3, 5, 10]), headed=6)
    assert found["model_tflops"] == pytest.approx(needed / 8 / 1e12)
    assert found["mfu"] == pytest.approx(needed / 8 / 1e6)
    assert meter.collect() == {}
    one_step(meter, clock, packed, work=2)
    assert meter.collect()["tokens_per_second"] == 9
    assert meter.tokens_seen == 54


def test_without_a_known_peak_there_is_no_utilisation() -> None:
    clock = Clock()
    meter = Meter(PER_TOKEN, 4, clock=clock)
    one_step(meter, clock, [flatten([row(4)])])
    assert "mfu" not in meter.collect()


def test_sums_go_on_after_resuming() -> None:
    clock, state = Clock(), transformers.TrainerState()
    meter = Meter(PER_TOKEN, 6, clock=clock)
    state.log_history = [{"loss": 1.0, "tokens_seen": 70, "trained_tokens_seen": 30}, {"eval_loss": 1.0}]
    meter.on_train_begin(None, state, None)
    one_step(meter, clock, [flatten([row(4, trained=2)])])
    found = meter.collect()
    assert (found["tokens_seen"], found["trained_tokens_seen"]) == (74, 32)


def test_padding_is_no_speed() -> None:
    found, rows, shape = [], [row(2, 2, 12)], FixedShape(36, 3)
    for batch, padded in ((flatten(rows), None), (fix_shape(rows, shape), shape)):
        clock = Clock()
        meter = Meter(PER_TOKEN, 36, shape=padded, clock=clock)
        one_step(meter, clock, [batch])
        found.append(meter.collect())
    assert found[0] == found[1]
    assert (found[0]["tokens_per_second"], found[0]["fill"]) == (16, 16 / 36)


def test_evaluations_and_saves_are_left_out_but_not_the_waiting_after_them() -> None:
    clock = Clock()
    meter = Meter(PER_TOKEN, 6, clock=clock)
    batches = [flatten([row(6)])]
    one_step(meter, clock, batches, work=2)
    clock.now += 50
    meter.on_evaluate(None, None, None)
    clock.now += 7
    meter.on_save(None, None, None)
    one_step(meter, clock, batches, wait=1, work=2)
    found = meter.collect()
    assert found["tokens_per_second"] == pytest.approx(12 / 5)
    assert found["loader_wait"] == pytest.approx(1 / 5)
    clock.now += 9  # of an evaluation after the line was written
    meter.on_evaluate(None, None, None)
    one_step(meter, clock, batches, work=3)
    assert meter.collect()["tokens_per_second"] == pytest.approx(2)


RANK = """
import json, sys
import numpy as np, torch
from packtrain.training.loader.collate import flatten
from packtrain.training.shards.arrow_shard import RowSpan
from packtrain.training.trainer.flops import ModelFlops
from packtrain.training.trainer.meter import Meter

rank, where = int(sys.argv[1]), sys.argv[2]
torch.distributed.init_process_group("gloo", init_method=f"file://{where}", rank=rank, world_size=2)
now = [0.0]
meter = Meter(ModelFlops(1.0, 0.0, 0.0, False, ()), 40, clock=lambda: now[0])
for tokens in ((30, 10), (10, 30)):
    ids = np.arange(tokens[rank], dtype=np.int32)
    meter.batch(flatten([RowSpan(ids, ids, ids, np.array([len(ids)], dtype=np.int32))]), 0.0)
    meter.on_step_begin(None, None, None)
    now[0] += 1.0 + rank
    meter.on_step_end(None, None, None)
print(json.dumps(meter.collect()))
"""


@pytest.mark.slow
def test_two_ranks_that_take_turns_at_the_long_row_are_out_of_balance_in_every_step(tmp_path: Path) -> None:
    """Both have 40 tokens in all; the slower one took 4 seconds."""
    environment = os.environ | warm.python() | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", RANK]
    ranks = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "meet")], stdout=subprocess.PIPE, env=environment)
        for rank in (0, 1)
    ]
    figures = [json.loads(rank.communicate(timeout=120)[0]) for rank in ranks]
    assert figures[0] == figures[1]
    assert figures[0]["balance"] == pytest.approx(30 / 20)
    assert figures[0]["tokens_per_second"] == 40 / 4
    assert figures[0]["tokens_seen"] == 80


class Logging(transformers.Trainer):  # type: ignore[misc, name-defined]
    """As PackedTrainer does it: tell the meter what is drawn, and add its figures to what is logged."""

    meter: Meter

    def get_train_dataloader(self) -> Any:
        return self.train_dataset

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> Any:
        samples, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        for batch in samples:
            self.meter.batch(batch)
        return samples, items

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs.update(self.meter.collect())
        super().log(logs, start_time)


def test_under_a_real_trainer_with_accumulation(folder: Path, tmp_path: Path) -> None:
    model = make("Llama", vocab_size=4096, attention="sdpa")
    loader = PackedLoader(folder, rows_per_step=2, tail="drop", num_workers=0)
    length = len(loader)
    batches = list(PackedLoader(folder, rows_per_step=2, num_workers=0))
    meter = Meter(ModelFlops.of(model), 2 * loader.corpus.max_length)
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=4, gradient_accumulation_steps=3, logging_steps=2, save_strategy="no",
        remove_unused_columns=False, report_to=[], use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    trainer = Logging(model, arguments, train_dataset=loader, callbacks=[meter])
    trainer.meter = meter
    trainer.train()
    lines = [line for line in trainer.state.log_history if "loss" in line]
    assert [line["step"] for line in lines] == [2, 4]
    assert length >= 12
    for number, line in enumerate(lines):
        part = batches[number * 6 : number * 6 + 6]
        tokens = sum(batch["input_ids"].numel() for batch in part)
        assert line["fill"] == pytest.approx(tokens / (6 * 2 * loader.corpus.max_length))
        assert line["trained_share"] == pytest.approx(sum(int((b["labels"] >= 0).sum()) for b in part) / tokens)
        assert line["tokens_per_second"] > 0
        assert 0 <= line["loader_wait"] < 1
    assert lines[1]["tokens_seen"] == sum(batch["input_ids"].numel() for batch in batches[:12])
