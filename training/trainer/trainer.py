"""PackedTrainer: transformers.Trainer with packtrain's loader, its loss, its proof of isolation and its checkpoints.

1. The loader goes in whole and unprepared: it has divided the rows among the ranks, and knows where it stands.
2. Before the first step, and after resuming, the very model that trains is probed: no document may see another.
3. Every micro-batch gives its part of one global mean (`loss`), whatever the ranks and micro-batches.
4. A checkpoint says last of all where the loader stood, and is whole only then (`checkpoint`).

Everything else (optimizers, schedules, precision, DDP, FSDP, DeepSpeed, clipping, logging) is transformers' own.
"""

import copy
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from ...schemas.config.hints import choice
from ...schemas.errors import ConfigError, DivergedError, InputError
from ..attention import check_batch, use_packed
from ..loader.loader import PackedLoader
from ..order.concat import ConcatRows
from ..order.mixture import Source
from ..printing import print_line
from . import checkpoint
from .alarm import Alarm
from .arguments import accumulation
from .callbacks import Proof, StepClock
from .console import ConsoleLog, Say
from .data import Feed, position_limit, refuse_long_documents, steps_wanted
from .evaluation import HeldOut, loss_metrics, measure
from .forward import Forward
from .fused_loss import fuse_loss
from .loss import LossMean, targets
from .meter import Meter
from .models import longest_trained, may_leave_weights_unused, trained_shapes, vocabulary
from .output_lock import locked
from .owned import OWNED
from .parallel import refuse_parallelism, warn_of_ignored_launcher

_LOG = logging.getLogger(__name__)
TARGETS = "targets"
"""Key of a batch for its targets, until the loss removes them."""


class PackedTrainer(Trainer):  # type: ignore[misc]  # transformers is not followed
    """Trains a causal language model on packed shards.

    Args:
        model: of transformers; or with adapters of peft.
        args: transformers.TrainingArguments. Accumulation, batch size, columns and data skipping are set here.
        data: folder or URL of what `packtrain run` wrote, or a list of `Source`.
        rows_per_step: packed rows of one optimizer step, over all ranks and accumulation steps.
        rows_per_device: rows of one forward pass on one device.
        epochs: how often the data is read; `args.max_steps` ends a training earlier.
        split: of `data`, where it is one dataset.
        loader: further arguments of `PackedLoader`, such as `{"tail": "pad"}`.
        attention: see `training.attention.use_packed`.
        probe: prove isolation before the first step.
        loss: `token` or `document`, see `LossMean`.
        loss_kernel: see `fused_loss.LossKernelKind`; `auto` is the plain loss on a CPU.
        offload_activations: keep activations in the host's memory between forward and backward.
        eval_data: rows on which the loss is measured.
        eval_every: steps between two measurements; None for one, at the end.
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
        split: str = "train",
        loader: Mapping[str, Any] | None = None,
        attention: str = "auto",
        probe: bool = True,
        loss: str = "token",
        loss_kernel: str = "auto",
        offload_activations: bool = False,
        eval_data: HeldOut | None = None,
        eval_every: int | None = None,
        say: Say | None = print_line,
        callbacks: Sequence[Any] = (),
        optimizers: tuple[Any, Any] = (None, None),
    ) -> None:
        self.loss_mean = choice("loss", loss, LossMean)
        self.probes, self.say = probe, say
        args = copy.copy(args)
        parts = accumulation(rows_per_step, rows_per_device, args.world_size)
        cuda = args.device.type == "cuda"
        options = {"seed": args.seed, "epochs": epochs, "split": split, "pin_memory": cuda, **(loader or {})}
        self.loader = PackedLoader(data, rows_per_step=rows_per_step, accumulate=parts, **options)
        self.feed = Feed(self.loader)
        held = {} if eval_data is None else {"the held-out data": ConcatRows([eval_data.rows])}
        self.limit = position_limit(model)
        refuse_long_documents(self.limit, {"the data": self.loader.corpus, **held})
        steps = steps_wanted(args.max_steps, self.feed)
        _fill_in(args, parts, rows_per_device, steps, experts=may_leave_weights_unused(model))
        if eval_data is not None:
            args.eval_strategy, args.eval_steps = "steps", eval_every or args.max_steps
        self.vocabulary = vocabulary(model)
        self._made_for = longest_trained(model)
        self.settings = checkpoint.settings_of(args, trained_shapes(model))
        self.applied = use_packed(model, attention)
        plain = loss_kernel == "none" or (loss_kernel == "auto" and args.device.type == "cpu")
        fused = None if plain else fuse_loss(model, loss_kernel)
        self.forward = Forward(model, fused=fused, every_position=self.loader.shape is not None)
        self.offloads = offload_activations
        super().__init__(
            model=model, args=args, eval_dataset=eval_data, callbacks=list(callbacks), optimizers=optimizers
        )
        refuse_parallelism(self.accelerator)
        warn_of_ignored_launcher(self.accelerator)
        # transformers then neither divides by the micro-batches nor counts the labels again.
        self.model_accepts_loss_kwargs = self.loss_is_scaled_for_ga = True
        self.add_callback(StepClock(self.feed))
        self.meter = Meter.of(self)
        self.add_callback(self.meter)
        self.proof = Proof(self)
        self.add_callback(self.proof)
        self.add_callback(Alarm(self.vocabulary))
        self.remove_callback(PrinterCallback)
        self.remove_callback(ProgressCallback)
        if say is not None:
            self.add_callback(ConsoleLog(say))

    @property
    def steps_total(self) -> int:
        """Number of optimizer steps of the whole training."""
        return int(self.args.max_steps)

    # Data

    def get_train_dataloader(self) -> Any:
        """The loader unchanged; accelerate must not divide it again."""
        return self.feed.dataloader()

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
            waited = time.perf_counter() - began
            check_batch(batch)  # before it goes to the device, where looking would wait for it
            self._check_fits(batch)
            self.meter.batch(batch, waited)
            samples.append({**batch, TARGETS: targets(batch, self.loss_mean)})
        self.feed.drew()
        if not samples:
            return samples, None
        units = torch.tensor(sum(batch[TARGETS].units for batch in samples), device=device)
        if self.args.world_size > 1:
            units = self.accelerator.gather(units).sum()
        return samples, units.clamp_min(1).float()

    def _check_fits(self, batch: Mapping[str, Any]) -> None:
        """Raise for ids and positions without embeddings; on a device they would fail with an assertion that says
        nothing.
        """
        longest = int(batch["position_ids"].max()) + 1
        if self.limit is not None and longest > self.limit.tokens:
            raise InputError(
                f"a batch has positions up to {longest:,}, but {self.limit.reason}. With fixed shapes "
                "(loader.static_shapes), padding counts as a document: leave them out"
            )
        if self._made_for is not None and longest > self._made_for:
            _LOG.warning(
                "the data has a document of %s tokens, longer than the model's max_position_embeddings (%s): positions "
                "beyond may never have been trained",
                f"{longest:,}",
                f"{self._made_for:,}",
            )
            self._made_for = None  # said
        highest = int(batch["input_ids"].max())
        if highest >= self.vocabulary:
            raise InputError(
                f"the data has the token id {highest:,}, but the model has embeddings for {self.vocabulary:,} ids: it "
                "was packed with another tokenizer than the model's. Pack it with the model's, or resize the model"
            )

    # Loss

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """This micro-batch's part of the step's loss, times the number of ranks, because gradients are averaged over
        ranks.
        """
        batch = dict(inputs)
        wanted = batch.pop(TARGETS).to(self.args.device)
        ranks = self.accelerator.num_processes
        share = 1 / (ranks * max(1, self.current_gradient_accumulation_steps))
        self.proof.first_batch(batch)
        with self.proof.step(batch), self._offloading():
            return self.forward.loss(model, batch, wanted, num_items_in_batch, share=share) * ranks

    def _offloading(self) -> Any:
        if not self.offloads:
            return nullcontext()
        from .memory import offloaded

        return offloaded(self.model)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log, with the meter's measurements since the last line, over all ranks."""
        if "loss" in logs:
            logs.update(self.meter.collect())
        super().log(logs, *args, **kwargs)
        # float16's scaler may yet skip such a step; anywhere else the weights are lost, and must not be saved.
        if math.isnan(logs.get("loss", 0)) and not self.args.fp16:
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
        model = self._model_to_evaluate()
        was_training = model.training
        model.eval()

        def logits(batch: dict[str, Any], wanted: Any) -> torch.Tensor:
            self._check_fits(batch)
            return self.forward.logits(model, self._prepare_inputs(batch), wanted.to(self.args.device))

        ranks = self.accelerator.num_processes
        sums = measure(held, logits, self.args.device, self.accelerator.process_index, ranks)
        sums = self.accelerator.reduce(sums, "sum") if ranks > 1 else sums
        model.train(was_training)
        metrics = loss_metrics(sums, held.sources, metric_key_prefix)
        metrics[f"{metric_key_prefix}_runtime"] = round(time.perf_counter() - began, 3)
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)  # type: ignore[has-type]
        return metrics

    def _model_to_evaluate(self) -> Any:
        """The prepared model, sharded and casting as in training; prepares it if there was no training."""
        if self.is_deepspeed_enabled or self.accelerator._models:
            return self.model_wrapped
        return self.accelerator.prepare_model(self.model, evaluation_mode=True)

    # Checkpoints

    def train(self, resume_from_checkpoint: str | Path | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train, from the beginning or from a checkpoint. True stands for the last whole one in `args.output_dir`.

        Raises:
            BusyError: another training works on `args.output_dir`.
            ConfigError: the checkpoint is not whole, or is of another training.
            LeakError: documents of a row see each other; names the setting at fault.
        """
        with locked(Path(self.args.output_dir), self.args.process_index):
            return self._train_from(resume_from_checkpoint, *args, **kwargs)

    def _train_from(self, resume_from_checkpoint: str | Path | bool | None, *args: Any, **kwargs: Any) -> Any:
        folder: Path | None = None
        if resume_from_checkpoint is True:
            folder = checkpoint.last_whole(Path(self.args.output_dir))
            if folder is None:
                raise ConfigError(
                    f"there is no whole checkpoint in {self.args.output_dir} to go on from; "
                    "train without resuming, or name another folder"
                )
        elif resume_from_checkpoint:
            folder = Path(str(resume_from_checkpoint))
        if folder is None:
            self.feed.go_to(self.feed.beginning)
        else:
            state = checkpoint.read_checkpoint(folder)
            state.refuse_other(self.loader.rows_per_step, self.loss_mean, self.settings, folder)
            self.feed.go_to(state.loader, over=state.step >= self.steps_total)
        return super().train(None if folder is None else str(folder), *args, **kwargs)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
        if self.args.should_save:
            checkpoint.remove_marker(folder)
        # Old ones are deleted only when this one is whole.
        keep, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            with checkpoint.writing(f"the checkpoint {folder}"):
                super()._save_checkpoint(model, trial)
        finally:
            self.args.save_total_limit = keep
        self.accelerator.wait_for_everyone()  # every rank writes files of its own
        if self.args.should_save:
            with checkpoint.writing(f"the checkpoint {folder}"):
                checkpoint.write_marker(
                    folder,
                    step=self.state.global_step,
                    rows_per_step=self.loader.rows_per_step,
                    loss=self.loss_mean,
                    settings=self.settings,
                    world_size=self.accelerator.num_processes,
                    loader=self.feed.finished,
                )
            checkpoint.rotate(folder, keep, self.state.best_model_checkpoint)


def _fill_in(args: Any, parts: int, rows_per_device: int, steps: int, *, experts: bool) -> None:
    """Set the TrainingArguments that follow from the rows."""
    if args.gradient_accumulation_steps not in (1, parts):
        raise ConfigError(
            f"args.gradient_accumulation_steps={args.gradient_accumulation_steps}, but rows_per_step makes it {parts}: "
            "leave it out, and choose rows_per_step and rows_per_device"
        )
    if args.label_smoothing_factor:
        raise ConfigError("args.label_smoothing_factor: the loss is the plain cross-entropy; leave it out")
    if args.neftune_noise_alpha:
        raise ConfigError(f"args.neftune_noise_alpha: {OWNED['neftune_noise_alpha']}; leave it out")
    if args.n_gpu > 1:
        _LOG.warning(
            "this process uses one of the %d GPUs that it sees; start one process each: torchrun --nproc-per-node %d",
            args.n_gpu,
            args.n_gpu,
        )
        args._n_gpu = 1
    args.gradient_accumulation_steps, args.per_device_train_batch_size = parts, rows_per_device
    args.max_steps = steps
    if args.ddp_find_unused_parameters is None:
        # Looking for them costs a walk through the graph in every step; only experts may go without a token.
        args.ddp_find_unused_parameters = experts
    args.remove_unused_columns, args.ignore_data_skip, args.average_tokens_across_devices = False, True, True
