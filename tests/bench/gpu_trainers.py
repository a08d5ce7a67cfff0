"""The same training through whole trainers: packtrain's, and TRL's SFTTrainer with the same model, data and kernel."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from packtrain.schemas.rows import IGNORE_INDEX
from packtrain.training.rows import PackedRows
from packtrain.training.trainer.meter import ModelFlops
from transformers import TrainerCallback, TrainingArguments

if TYPE_CHECKING:
    from tests.bench.gpu_batches import Counts
    from tests.bench.gpu_measure import Bench, Measured, Variant
else:
    from gpu_batches import Counts
    from gpu_measure import Bench, Measured, Variant

EPOCHS = 1000


class Clock(TrainerCallback):  # type: ignore[misc]  # transformers is not followed
    """Times the steps after the warm-up, and ends the training when the time is up."""

    def __init__(self, bench: Bench, out: Measured) -> None:
        self.bench, self.out = bench, out
        self.made = time.perf_counter()
        self.begin = 0.0
        self.measured = 0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """After each optimizer step."""
        if state.global_step < self.bench.warmup:
            return
        if state.global_step == self.bench.warmup:
            self._settle()
            self.begin = time.perf_counter()
            self.out.prepared = self.begin - self.made
            return
        self.measured += 1
        if self.measured % 4 == 0:
            self._settle()
        if time.perf_counter() - self.begin > self.bench.seconds and self.measured >= 3:
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """After the last."""
        self._settle()
        self.out.seconds = time.perf_counter() - self.begin
        losses = [entry["loss"] for entry in state.log_history if "loss" in entry]
        self.out.losses = [losses[0], losses[-1]] if losses else []

    def _settle(self) -> None:
        if self.bench.device.type == "cuda":
            torch.cuda.synchronize()


def _arguments(bench: Bench, make: Callable[..., Any], **more: Any) -> Any:
    return make(
        output_dir=str(bench.folder.parent / "trainer"),
        max_steps=len(PackedRows(bench.folder)) * EPOCHS // bench.rows,  # more than there is time for
        learning_rate=1e-5,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,  # as the bare loop
        optim="adamw_torch_fused" if bench.device.type == "cuda" else "adamw_torch",
        logging_steps=5 if bench.device.type == "cpu" else 10,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        bf16=False,  # the weights are in bf16 already
        use_cpu=bench.device.type == "cpu",
        **more,
    )


def packtrain(bench: Bench, variant: Variant, out: Measured) -> None:
    """packtrain.training.PackedTrainer, with its probe and its checks of every step."""
    from packtrain.training.trainer.trainer import PackedTrainer

    clock = Clock(bench, out)
    model, out.kernel = bench.build(variant.attention)
    flops = ModelFlops.of(model)
    trainer = PackedTrainer(
        model,
        _arguments(bench, TrainingArguments, torch_compile=variant.compile),
        data=bench.folder,
        rows_per_step=bench.rows,
        rows_per_device=bench.rows,
        epochs=EPOCHS,
        attention=variant.attention,
        loss_kernel=variant.loss,
        say=None,
        callbacks=[clock],
    )
    trainer.train()
    _count(bench, clock, flops)


def trl(bench: Bench, variant: Variant, out: Measured) -> None:
    """trl.SFTTrainer on the packed shards; the settings are the one combination that keeps documents apart there."""
    import datasets
    from trl import SFTConfig, SFTTrainer

    clock = Clock(bench, out)
    model, out.kernel = bench.build(variant.attention)
    flops = ModelFlops.of(model)
    (shard,) = (bench.folder / "shards").iterdir()
    trainer = SFTTrainer(
        model,
        args=_arguments(
            bench,
            SFTConfig,
            packing=False,
            padding_free=True,
            max_length=None,
            per_device_train_batch_size=bench.rows,
            gradient_checkpointing=False,
            torch_compile=variant.compile,
            dataset_kwargs={"skip_prepare_dataset": True},
        ),
        train_dataset=datasets.Dataset.from_file(str(shard)),
        processing_class=_tokenizer(bench.model["vocab_size"]),
        callbacks=[clock],
    )
    trainer.train()
    _count(bench, clock, flops)


TRAINERS: dict[str, Callable[[Bench, Variant, Measured], None]] = {"packtrain": packtrain, "trl": trl}


def _count(bench: Bench, clock: Clock, flops: ModelFlops) -> None:
    """What the measured steps held. A trainer chooses its rows itself, so the average row stands for each."""
    packed = PackedRows(bench.folder)
    share = bench.rows * clock.measured / len(packed)
    clock.out.steps = clock.measured
    for number in range(len(packed)):
        row = packed.row(number)
        trained = int((row.labels != IGNORE_INDEX).sum())
        one = Counts(row.seq_lengths.astype("int64"), len(row.input_ids), trained)
        clock.out.tokens += int(one.lengths.sum())
        clock.out.computed += one.computed
        clock.out.trained += one.trained
        clock.out.flops += flops.of_lengths(one.lengths)
    for name in ("tokens", "computed", "trained"):
        setattr(clock.out, name, round(getattr(clock.out, name) * share))
    clock.out.flops *= share
    if bench.device.type == "cuda":
        clock.out.peak_bytes = torch.cuda.max_memory_allocated()


def _tokenizer(vocabulary: int) -> Any:
    """TRL asks for one; the shards hold ids already."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {f"<{number}>": number for number in range(min(vocabulary, 64))}
    bare = Tokenizer(models.WordLevel(words, unk_token="<0>"))
    return PreTrainedTokenizerFast(tokenizer_object=bare, pad_token="<0>", eos_token="<1>", unk_token="<0>")
