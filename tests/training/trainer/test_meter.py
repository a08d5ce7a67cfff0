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
from packtrain.training.batch import FixedShape, fix_shape, flatten, unpack  # noqa: E402
from packtrain.training.shard import Strip  # noqa: E402
from packtrain.training.trainer.batch_sizes import BatchSizes  # noqa: E402
from packtrain.training.trainer.flops import ModelFlops  # noqa: E402
from packtrain.training.trainer.meter import Meter  # noqa: E402

from tests.training.trainer.tiny_models import make  # noqa: E402


def row(*lengths: int, trained: int = 1) -> Strip:
    """Documents in which the last `trained` tokens are."""
    labels = np.concatenate([np.r_[np.full(n - trained, -100), np.arange(trained) + 7] for n in lengths])
    positions = np.concatenate([np.arange(n) for n in lengths])
    return Strip(whole(np.arange(sum(lengths)) + 5), whole(labels), whole(positions), whole(np.array(lengths)))


def whole(numbers: NDArray[np.int64]) -> NDArray[np.int32]:
    return numbers.astype(np.int32)


def test_sizes_of_the_same_documents_in_every_form() -> None:
    rows = [row(3, 5), row(8), row(2, 2)]
    expected = [3, 5, 8, 2, 2]
    for batch, options, positions in (
        (flatten(rows), {}, 20),
        (unpack(rows), {}, 5 * 8),
        (fix_shape(rows, FixedShape(8, 2)), {"static_length": 8}, 24),
        (fix_shape(rows, FixedShape(10, 4, 99)), {"static_length": 10, "pad_id": 99}, 30),
    ):
        sizes = BatchSizes.of(batch, **options)
        assert sizes.lengths.tolist() == expected
        assert (sizes.tokens, sizes.trained, sizes.positions) == (20, 5, positions)


def test_an_untrained_document_that_fills_a_row_is_not_padding() -> None:
    six, untrained, zero = (whole(np.full(4, value)) for value in (6, -100, 0))
    document = Strip(six, untrained, zero, whole(np.array([4])))
    assert BatchSizes.of(fix_shape([document], FixedShape(4, 1)), static_length=4).lengths.tolist() == [4]


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
    meter = Meter(flops, capacity=10, clock=clock, skips_untrained=False)
    clock.now += 1000  # loading and probing
    packed = [flatten([row(3, 5)]), flatten([row(10, trained=4)])]
    one_step(meter, clock, packed, wait=0.5, work=3)
    one_step(meter, clock, packed, work=4)
    meter.peak = 1e6
    found = meter.collect()
    assert found["tokens_per_second"] == 36 / 8
    assert found["trained_tokens_per_second"] == 12 / 8
    assert found["fill"] == 36 / 40
    assert found["trained_share"] == 12 / 36
    assert found["loader_wait"] == 1 / 8
    assert found["tokens_seen"] == 36
    assert "balance" not in found
    needed = 2 * flops.of_lengths(np.array([3, 5, 10]))
    assert found["model_tflops"] == pytest.approx(needed / 8 / 1e12)
    assert found["mfu"] == pytest.approx(needed / 8 / 1e6)
    assert meter.collect() == {}
    one_step(meter, clock, packed, work=2)
    assert meter.collect()["tokens_per_second"] == 9
    assert meter.tokens_seen == 54


def test_without_a_known_peak_there_is_no_utilisation() -> None:
    clock = Clock()
    meter = Meter(ModelFlops.of(make("Llama")), clock=clock)
    one_step(meter, clock, [flatten([row(4)])])
    assert "mfu" not in meter.collect()


def test_sums_go_on_after_resuming() -> None:
    clock, state = Clock(), transformers.TrainerState()
    meter = Meter(clock=clock)
    state.log_history = [{"loss": 1.0, "tokens_seen": 70, "trained_tokens_seen": 30}, {"eval_loss": 1.0}]
    meter.on_train_begin(None, state, None)
    one_step(meter, clock, [flatten([row(4, trained=2)])])
    found = meter.collect()
    assert (found["tokens_seen"], found["trained_tokens_seen"]) == (74, 32)


def test_padding_is_no_speed() -> None:
    found = []
    for batch in (flatten([row(2, 2, 12)]), unpack([row(2, 2, 12)])):
        clock = Clock()
        meter = Meter(ModelFlops.of(make("Llama")), clock=clock)
        one_step(meter, clock, [batch])
        found.append(meter.collect())
    packed, padded = found
    assert packed["tokens_per_second"] == padded["tokens_per_second"] == 16
    assert packed["model_tflops"] == padded["model_tflops"]
    assert (packed["fill"], padded["fill"]) == (1, 16 / 36)


def test_evaluations_and_saves_are_left_out_but_not_the_waiting_after_them() -> None:
    clock = Clock()
    meter = Meter(clock=clock)
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
from packtrain.training.batch import flatten
from packtrain.training.shard import Strip
from packtrain.training.trainer.meter import Meter

rank, where = int(sys.argv[1]), sys.argv[2]
torch.distributed.init_process_group("gloo", init_method=f"file://{where}", rank=rank, world_size=2)
now = [0.0]
meter = Meter(clock=lambda: now[0])
for tokens in ((30, 10), (10, 30)):
    ids = np.arange(tokens[rank], dtype=np.int32)
    meter.batch(flatten([Strip(ids, ids, ids, np.array([len(ids)], dtype=np.int32))]), 0.0)
    meter.on_step_begin(None, None, None)
    now[0] += 1.0 + rank
    meter.on_step_end(None, None, None)
print(json.dumps(meter.collect()))
"""


@pytest.mark.slow
def test_two_ranks_that_take_turns_at_the_long_row_are_out_of_balance_in_every_step(tmp_path: Path) -> None:
    """Both have 40 tokens in all; the slower one took 4 seconds."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
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
    sizes = [BatchSizes.of(batch) for batch in PackedLoader(folder, rows_per_step=2, num_workers=0)]
    meter = Meter(ModelFlops.of(model), capacity=2 * loader.corpus.max_length)
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
        part = sizes[number * 6 : number * 6 + 6]
        assert line["fill"] == pytest.approx(sum(one.tokens for one in part) / (6 * 2 * 256))
        assert line["trained_share"] == pytest.approx(sum(o.trained for o in part) / sum(o.tokens for o in part))
        assert line["tokens_per_second"] > 0
        assert 0 <= line["loader_wait"] < 1
    assert lines[1]["tokens_seen"] == sum(one.tokens for one in sizes[:12])
