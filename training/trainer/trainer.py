"""PackedTrainer: transformers.Trainer with packtrain's loader, its loss, its proof of isolation and its checkpoints.

1. The loader goes in whole and unprepared: it has divided the rows among the ranks. Where it stands is arithmetic:
   steps made, times the rows of a step.
2. With the first batch, also after resuming, the very model that trains is probed: no document may see another.
3. Every micro-batch gives its part of one global mean (`loss`), whatever the ranks and micro-batches.
4. A checkpoint is marked last of all, and is whole only then (`checkpoint`).

Everything else (optimizers, schedules, precision, DDP, FSDP, DeepSpeed, clipping, logging) is transformers' own.
"""

import copy
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from ...schemas.errors import ConfigError, DivergedError, LeakError
from ...schemas.units import plural
from ..attention import use_packed
from ..loader import PackedLoader
from ..model import ModelLimits, may_leave_weights_unused
from ..packed_rows import Source
from ..probe import ProbeReport, probe
from ..sharded import find_shards
from . import Say, checkpoint, print_line
from .evaluate import HeldOut, loss_metrics, measure
from .loss import Forward, fuse_loss, offloaded, targets
from .train_config import CUT, OWNED, accumulation
from .watch import ConsoleLog, EarlyWarnings, Meter

_LOG = logging.getLogger(__name__)
TARGETS = "targets"
"""Key of a batch for its targets, until the loss removes them."""


class _Batches:
    """The batches of a loader that are left. `len()` counts the whole training, also after resuming."""

    def __init__(self, loader: PackedLoader, count: int, over: bool) -> None:
        self.loader, self.count, self.over = loader, count, over

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(()) if self.over else iter(self.loader)

    def __len__(self) -> int:
        return self.count


class PackedTrainer(Trainer):  # type: ignore[misc]  # transformers is not followed
    """Trains a causal language model on packed shards.

    Args:
        model: of transformers; or with adapters of peft.
        args: transformers.TrainingArguments. Accumulation, batch size, columns and data skipping are set here.
        data: folder or URL of what `packtrain run` wrote, or a list of `Source`.
        rows_per_step: packed rows of one optimizer step, over all ranks and accumulation steps.
        rows_per_device: rows of one forward pass on one device.
        epochs: how often the data is read; `args.max_steps` ends a training earlier.
        loader: further arguments of `PackedLoader`, such as `{"tail": "pad"}`.
        attention: see `training.attention.use_packed`.
        probe: prove isolation before the first step.
        loss_kernel: see `loss.KINDS`.
        offload_activations: keep activations in the host's memory between forward and backward.
        eval_data: rows on which the loss is measured.
        eval_every: steps between two measurements; None for one, at the end.
        tokenizer: of transformers; every checkpoint holds it.
        say: prints a line; None for silence.
        callbacks, optimizers: of transformers.Trainer.

    Raises:
        ConfigError: settings that do not go together; says which, and what to do.
        InputError, IntegrityError: of the data, see `PackedRows`.
        AttentionError: the model cannot change its attention.
    """

    def __init__(
        self,
        model: Any,
        args: Any,
        *,
        data: str | Path | Sequence[Source],
        rows_per_step: int,
        rows_per_device: int = 1,
        epochs: int = 1,
        loader: Mapping[str, Any] | None = None,
        attention: str = "auto",
        probe: bool = True,
        loss_kernel: str = "auto",
        offload_activations: bool = False,
        eval_data: HeldOut | None = None,
        eval_every: int | None = None,
        tokenizer: Any = None,
        say: Say | None = print_line,
        callbacks: Sequence[Any] = (),
        optimizers: tuple[Any, Any] = (None, None),
    ) -> None:
        self.say, self.offloads, self.tokenizer, self.unproved = say, offload_activations, tokenizer, probe
        args, cuda = copy.copy(args), args.device.type == "cuda"
        parts = accumulation(rows_per_step, rows_per_device, args.world_size)
        options = {"seed": args.seed, "epochs": epochs, "pin_memory": cuda, **(loader or {})}
        self.loader = PackedLoader(data, rows_per_step=rows_per_step, accumulate=parts, **options)
        self.beginning = self.loader.state_dict()
        self.over = False
        """All steps were made before the checkpoint that training resumes from."""
        self.proved: ProbeReport | None = None
        """The proof of isolation, once it was made."""
        self.limits, padded = ModelLimits.of(model), bool(options.get("static_shapes"))
        self.limits.check_rows("the data", self.loader.corpus, rows_per_device, padded=padded)
        steps, liger = len(self.loader) // parts, loss_kernel == "liger"
        fill_in(
            args, model, rows_per_device=rows_per_device, parts=parts, steps=steps, liger=liger, offloads=self.offloads
        )
        if eval_data is not None:
            self.limits.check_rows("the held-out data", eval_data.rows, eval_data.rows_per_device)
            args.eval_strategy, args.eval_steps = "steps", eval_every or args.max_steps
        self.settings = checkpoint.settings_of(args, model, rows_per_step)
        self.applied = use_packed(model, attention)
        self.forward = Forward(model, fused=fuse_loss(model, loss_kernel, cuda=cuda), every_position=padded)
        self.meter = Meter()
        super().__init__(
            model=model, args=args, eval_dataset=eval_data, callbacks=list(callbacks), optimizers=optimizers
        )
        parallel = getattr(self.accelerator, "parallelism_config", None)  # which a launcher may have set
        for name in ("cp", "sp", "tp"):
            if getattr(parallel, f"{name}_enabled", False):
                raise ConfigError(f"leave parallelism_config.{name}_size out: {CUT}")
        # transformers then neither divides by the micro-batches nor counts the labels again.
        self.model_accepts_loss_kwargs = self.loss_is_scaled_for_ga = True
        for callback in (PrinterCallback, ProgressCallback):
            self.remove_callback(callback)
        lines = ConsoleLog(say, epochs_per_step=rows_per_step * epochs / max(1, self.loader.total_rows))
        for callback in (EarlyWarnings(self.limits.ids), lines):
            self.add_callback(callback)

    # Data

    def get_train_dataloader(self) -> Any:
        """The loader unchanged; accelerate must not divide it again. It makes its batches ahead by itself."""
        return _Batches(self.loader, int(self.args.max_steps) * self.loader.accumulate, self.over)

    def get_batch_samples(
        self, epoch_iterator: Iterator[dict[str, Any]], num_batches: int, device: Any
    ) -> tuple[list[dict[str, Any]], torch.Tensor | None]:
        """All micro-batches of a step, each with its targets, and what the step's loss is divided by on all ranks."""
        samples = []
        for _ in range(num_batches):
            began = time.perf_counter()
            batch = next(epoch_iterator, None)
            if batch is None:
                break
            self.limits.check_batch(batch)  # before it goes to the device, where looking would wait for it
            self.meter.batch(batch["input_ids"].numel(), time.perf_counter() - began)
            wanted = targets(batch)
            batch.pop("loss_weights", None)  # they are among the targets; the model does not take them
            samples.append({**batch, TARGETS: wanted})
        if not samples:
            return samples, None
        units = torch.tensor(sum(batch[TARGETS].units for batch in samples), device=device, dtype=torch.float64)
        if self.args.world_size > 1:
            units = self.accelerator.gather(units).sum()
        return samples, torch.where(units > 0, units, 1).float()

    # Loss

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """This micro-batch's part of the step's loss, times the number of ranks, because gradients are averaged over
        ranks.
        """
        batch = dict(inputs)
        wanted = batch.pop(TARGETS).to(self.args.device)
        self._prove(batch)
        ranks = self.accelerator.num_processes
        share = 1 / (ranks * max(1, self.current_gradient_accumulation_steps))
        with offloaded(self.model) if self.offloads else nullcontext():
            return self.forward.loss(model, batch, wanted, num_items_in_batch, share=share) * ranks

    def _prove(self, batch: Mapping[str, Any]) -> None:
        """Probe the model as it trains, wrapped, compiled and checkpointed, with the first batch.

        Raises:
            LeakError: documents see each other, with what to do; or something has changed the attention since.
        """
        if (now := str(self.model.config._attn_implementation)) != self.applied.name:
            raise LeakError(
                f"the step is not taken: attention was {self.applied.name} when training began, and is {now} now; "
                "something set it in between"
            )
        if not self.unproved:
            return
        # Within autocast, which the model's forward enters by itself: it tells the probe what rounding to expect.
        with self.meter.paused(), self.accelerator.autocast():
            report = probe(self.model_wrapped, batch=batch, seed=self.args.seed, device=self.args.device)
        self.proved, self.unproved = report.require(), False
        if self.say is not None and self.state.is_world_process_zero:
            self.say(f"isolation proved: {report.values}")

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log, with the meter's figures since the last line, over all ranks."""
        if "loss" in logs:
            seen = next((line["tokens_seen"] for line in reversed(self.state.log_history) if "tokens_seen" in line), 0)
            logs.update(self.meter.collect(seen))
        super().log(logs, *args, **kwargs)
        # float16's scaler may yet skip such a step; anywhere else the weights are lost, and must not be saved.
        if not math.isfinite(logs.get("loss", 0)) and not self.args.fp16:
            raise DivergedError(
                f"the loss is not a number at step {self.state.global_step:,}, so the weights are unusable, and "
                "nothing more is saved. Lower trainer.learning_rate, warm up longer, or look at the data and at the "
                "model's weights. Checkpoints before it are kept"
            )

    # Evaluation

    def evaluate(
        self, eval_dataset: HeldOut | None = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """The loss on held-out rows: `eval_loss`, and `eval_loss_{source}` for each source."""
        held = eval_dataset if eval_dataset is not None else self.eval_dataset
        if not isinstance(held, HeldOut):
            raise ConfigError("there is nothing to evaluate on; give eval_data=HeldOut(folder)")
        began = time.perf_counter()
        # The prepared model, sharded and casting as in training; prepared here if there was no training.
        prepared = self.is_deepspeed_enabled or self.accelerator._models
        model = self.model_wrapped if prepared else self.accelerator.prepare_model(self.model, evaluation_mode=True)
        was_training = model.training
        model.eval()

        def logits(batch: dict[str, Any], wanted: Any) -> torch.Tensor:
            self.limits.check_batch(batch)
            return self.forward.logits(model, self._prepare_inputs(batch), wanted.to(self.args.device))

        ranks = self.accelerator.num_processes
        with self.meter.paused():
            sums = measure(held, logits, self.args.device, self.accelerator.process_index, ranks)
        sums = self.accelerator.reduce(sums, "sum") if ranks > 1 else sums
        model.train(was_training)
        metrics = loss_metrics(sums, held.sources[0], metric_key_prefix)
        metrics[f"{metric_key_prefix}_runtime"] = round(time.perf_counter() - began, 3)
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)  # type: ignore[has-type]
        return metrics

    # Checkpoints

    def train(self, resume_from_checkpoint: str | Path | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train, from the beginning or from a checkpoint. True stands for the last whole one in `args.output_dir`.

        Raises:
            ConfigError: the checkpoint is not whole, or is of another training.
            LeakError: documents of a row see each other.
        """
        folder = None
        if resume_from_checkpoint is True:
            if (folder := checkpoint.last_whole(Path(self.args.output_dir))) is None:
                raise ConfigError(
                    f"there is no whole checkpoint in {self.args.output_dir}; train without resuming, or name another"
                )
        elif resume_from_checkpoint:
            folder = Path(resume_from_checkpoint)
        step, state = 0, self.beginning
        if folder is not None:
            found = checkpoint.read_checkpoint(folder)
            found.refuse_other(self.settings, folder)
            step, state = found.step, found.loader
        self.loader.load_state_dict({**state, "rows": step * self.loader.rows_per_step})
        self.over = step >= self.args.max_steps
        logger = logging.getLogger("transformers.trainer")
        level = logger.level
        if self.over:
            if self.say is not None:
                self.say(f"{plural(step, 'step was', 'steps were')} made already, none is left")
            logger.setLevel(logging.ERROR)  # it would warn that there is not a single sample
        try:
            return super().train(None if folder is None else str(folder), *args, **kwargs)
        finally:
            logger.setLevel(level)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
        if self.args.should_save:
            (folder / checkpoint.MARKER).unlink(missing_ok=True)  # it is written over
        # Old ones are deleted only when this one is whole.
        keep, self.args.save_total_limit = self.args.save_total_limit, None
        writing = partial(checkpoint.writing, f"the checkpoint {folder}")
        with self.meter.paused():
            try:
                with writing():
                    super()._save_checkpoint(model, trial)
            finally:
                self.args.save_total_limit = keep
            self.accelerator.wait_for_everyone()  # every rank writes files of its own
            if self.args.should_save:
                with writing():
                    if find_shards(folder) is not None:  # transformers writes none beside shards, and export needs it
                        self.model.config.save_pretrained(folder)
                    if self.tokenizer is not None:
                        self.tokenizer.save_pretrained(str(folder))
                    state = checkpoint.CheckpointState(self.state.global_step, self.settings, self.beginning)
                    checkpoint.write_marker(folder, state)
                checkpoint.rotate(folder, keep, self.state.best_model_checkpoint)


def fill_in(
    args: Any, model: Any, *, rows_per_device: int, parts: int, steps: int, liger: bool = False, offloads: bool = False
) -> None:
    """Set the TrainingArguments that follow from the rows.

    Args:
        parts: micro-batches of a rank in a step.
        steps: optimizer steps that the data gives.
        liger: the loss is computed by Liger's kernel.
        offloads: activations are kept in the host's memory.

    Raises:
        ConfigError: they hold something else already, or settings together would train wrongly or fail late; names all
            at fault, each with its reason and fix.
    """
    wrong = [
        f"args.{key}: {OWNED[key]}; leave it out"
        for key in ("label_smoothing_factor", "neftune_noise_alpha")
        if getattr(args, key)
    ]
    if args.gradient_accumulation_steps not in (1, parts):
        wrong.append(
            f"args.gradient_accumulation_steps={args.gradient_accumulation_steps}, but rows_per_step makes it {parts}: "
            "leave it out, and choose rows_per_step and rows_per_device"
        )
    if args.max_steps > steps:
        wrong.append(
            f"max_steps={args.max_steps:,}, but the data gives {plural(steps, 'step')}; take fewer steps, or read the "
            f"data about {-(-args.max_steps // max(1, steps)):,} times as often (epochs)"
        )
    if liger and offloads:
        wrong.append(
            "loss_kernel: liger with offload_activations: Liger's cross-entropy writes gradients over its inputs, of "
            "which offloading holds copies. Take loss_kernel: chunked, or leave offloading out"
        )
    if offloads and args.torch_compile and args.torch_compile_mode in ("reduce-overhead", "max-autotune"):
        wrong.append(
            "trainer.torch_compile_mode with offload_activations: a CUDA graph writes its activations to the same "
            "memory at every replay, while they are still copied to the host. Leave one of the two out"
        )
    if any(weight.requires_grad and weight.dtype == torch.float16 for weight in model.parameters()):
        wrong.append(
            "model.dtype: float16: small updates of float16 weights are lost, and the loss scaler refuses float16 "
            "gradients. Take model: {dtype: float32} with trainer: {fp16: true}, or model: {dtype: bfloat16}"
        )
    if wrong:
        raise ConfigError("\n".join(wrong))
    if args.n_gpu > 1:
        _LOG.warning("this process uses one of %d GPUs; start one process for each, with torchrun", args.n_gpu)
        args._n_gpu = 1  # transformers would split batches by nn.DataParallel
    args.gradient_accumulation_steps, args.per_device_train_batch_size = parts, rows_per_device
    args.max_steps = args.max_steps if args.max_steps > 0 else steps
    if args.ddp_find_unused_parameters is None:  # looking for them costs a walk through the graph in every step
        args.ddp_find_unused_parameters = may_leave_weights_unused(model)
    args.remove_unused_columns, args.ignore_data_skip, args.average_tokens_across_devices = False, True, True
