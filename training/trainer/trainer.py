"""PackedTrainer: transformers.Trainer with packtrain's loader, its loss, its proof of isolation and its checkpoints.

1. The loader goes in whole and unprepared: it has divided the rows among the ranks. Where it stands is arithmetic:
   steps made, times the rows of a step.
2. With the first batch, also after resuming, the very model that trains is probed: no document may see another.
3. Every micro-batch gives its part of one global mean (`loss`), whatever the ranks and micro-batches.
4. A checkpoint is marked last of all, and is whole only then (`checkpoint`).

In which order:

- *Before `super().__init__`*: the loader, whose steps decide `max_steps`; the model, its attention and its loss, as
  transformers wraps, moves and shards what it is given, and a head that is wrapped cannot be changed any more.
- *After it*: what transformers sets itself and would overwrite: how losses are scaled, callbacks, parallelism.
- *`train`*: the loader is put where the checkpoint stands, then transformers loads weights and optimizer.
- *A step*: `get_batch_samples` takes its micro-batches and counts what they train; `compute_loss` gives each its part.
- *The first `compute_loss`* (`_begin`), also after resuming: only now is the model on its device, wrapped and compiled.
- *`log`*, then *`_save_checkpoint`*: weights are looked at before anything is written.

Everything else (optimizers, schedules, precision, DDP, FSDP, DeepSpeed, clipping, logging) is transformers' own.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.trainer_utils import rotate_checkpoints

from ...schemas.errors import ConfigError, LeakError, PacktrainError
from ...schemas.units import plural
from ..attention.isolation_probe import probe
from ..attention.packed_attention import applied_on
from ..attention.probe_report import ProbeReport
from ..loader import PackedLoader
from ..models.limits import vocabulary_of
from ..models.sharded import find_shards
from ..rank_info import detect_rank
from . import Say, checkpoint, print_line
from .held_out import HeldOut, held_out_metrics
from .loss import forget_compiled, offloaded
from .pair_objective import PairObjective
from .setup import set_up
from .train_config import CUT, TrainConfig, validated
from .watch import ConsoleLog, EarlyWarnings, Meter, loss_of_guessing

TARGETS = "targets"
"""Key of a batch for its targets, until the loss removes them."""


class _Batches:
    """The batches of a loader that are left, for transformers.

    `len()` counts the micro-batches of the whole training, also after resuming: transformers computes from it how many
    steps an epoch has.

    Args:
        loader: stands where training begins or goes on.
        count: what `len()` gives.
        prepare: is called before the first batch is made, when the model is on its device, and wrapped.
    """

    def __init__(self, loader: PackedLoader, count: int, prepare: Callable[[], None]) -> None:
        self.loader = loader
        self.count = count
        self.prepare = prepare

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.prepare()
        return iter(self.loader)

    def __len__(self) -> int:
        return self.count


class PackedTrainer(Trainer):  # type: ignore[misc]  # transformers is not followed
    """Trains a causal language model on packed shards, as a configuration says. Every rank makes one.

    Args:
        config: validated, or plain data.
        base: where relative paths start; by default the working directory.
        say: prints a line, on the first rank only.
        callbacks: of transformers.Trainer.

    Raises:
        ConfigError: settings that do not go together; says which, and what to do.
        InputError, IntegrityError: of the data, see `PackedRows`.
        AttentionError: the model cannot change its attention.
    """

    def __init__(
        self,
        config: TrainConfig | Mapping[str, Any],
        base: Path | None = None,
        *,
        say: Say = print_line,
        callbacks: Sequence[Any] = (),
    ) -> None:
        config = validated(config)
        base = base or Path.cwd()
        self.say: Say = say if detect_rank().rank == 0 else lambda text: None
        setup = set_up(config, base, self.say)
        self.loader = setup.loader
        self.beginning = self.loader.state_dict()
        """The loader's state before the first step, which checkpoints hold: steps are computed from it."""
        self.tokenizer = setup.tokenizer
        self.reference = setup.reference
        self.objective = setup.objective
        self.settings = setup.settings
        """What must be the same when the training is resumed."""
        self.applied = setup.attention
        """What computes attention: as set up, and from the first batch on as on the device of the model."""
        self.offloads = config.offload_activations
        """Whether activations wait in the host's memory for the backward pass."""
        self.has_proof = config.probe
        """Whether isolation is to be proved."""
        self.proved: ProbeReport | None = None
        """The proof of isolation; None until it is made."""
        self.begun = False
        """Whether there was a first batch."""
        self.resumed_from: Path | None = None
        """The checkpoint that training was resumed from; None if it began at the beginning."""
        self.meter = Meter()
        # From here on the model is wrapped and moved.
        super().__init__(model=setup.model, args=setup.args, eval_dataset=setup.held_out, callbacks=list(callbacks))
        parallel = getattr(self.accelerator, "parallelism_config", None)  # which a launcher may have set
        # Context, sequence and tensor parallelism divide a row between ranks, or need its ranks to share rows.
        for name in ("cp", "sp", "tp"):
            if getattr(parallel, f"{name}_enabled", False):
                raise ConfigError(f"leave parallelism_config.{name}_size out: {CUT}")
        # The loss is a part of the step's mean already: transformers then neither divides it by the micro-batches nor
        # counts the labels again.
        self.model_accepts_loss_kwargs = True
        self.loss_is_scaled_for_ga = True
        # `ConsoleLog` prints in their place: they would print dicts, and a bar between the lines.
        for callback in (PrinterCallback, ProgressCallback):
            self.remove_callback(callback)
        self.add_callback(EarlyWarnings(loss_of_guessing(config.preference, vocabulary_of(setup.model))))
        self.add_callback(ConsoleLog(self.say, epochs_per_step=config.rows_per_step / len(self.loader.corpus)))

    # Data

    def get_train_dataloader(self) -> Any:
        """The loader unchanged; accelerate must not divide it again. It makes its batches ahead by itself."""
        count = int(self.args.max_steps) * self.loader.accumulate
        return _Batches(self.loader, count, self._prepare_reference)

    def _prepare_reference(self) -> None:
        """Read or compute the log-probabilities of the reference; nothing to do for a loss that compares with none."""
        if self.reference is None:
            return
        device = self.args.device
        # None: the weights of a resumed training are trained already, so its reference must be in the file.
        logps_of = self._reference_logps if self.resumed_from is None else None
        was_training = self.model.training
        self.model_wrapped.eval()  # dropout would make the log-probabilities random
        with self.meter.paused(), self.accelerator.autocast():
            attention = applied_on(self.model, device)
            self.reference.prepare(self.loader, self.model, attention, logps_of, device, self.say)
        self.model_wrapped.train(was_training)

    def _reference_logps(self, batch: dict[str, Any]) -> torch.Tensor:
        """float64 (D,): the log-probabilities of a batch's documents by the model as it is now."""
        assert isinstance(self.objective, PairObjective)  # only pairs are compared with a reference
        targets = self.objective.targets(batch).to(self.args.device)
        inputs = self._prepare_inputs(batch)
        if not self.begun:  # a model that leaks is not worth a pass over all rows
            self._begin(inputs)
        return self.objective.logps(self.model_wrapped, inputs, targets)

    def get_batch_samples(
        self, epoch_iterator: Iterator[dict[str, Any]], num_batches: int, device: Any
    ) -> tuple[list[dict[str, Any]], torch.Tensor | None]:
        """All micro-batches of a step, each with its targets, and what the step's loss is divided by on all ranks; no
        micro-batches and None at the end of the data.

        Args:
            epoch_iterator: gives the loader's batches.
            num_batches: how many micro-batches the step has.
            device: where the number is put.
        """
        samples: list[dict[str, Any]] = []
        for _ in range(num_batches):
            began = time.perf_counter()
            batch = next(epoch_iterator, None)
            if batch is None:
                break
            self.meter.batch(batch["input_ids"].numel(), time.perf_counter() - began)
            targets = self.objective.targets(batch)  # takes from the batch what the model must not get
            samples.append({**batch, TARGETS: targets})
        if not samples:
            return samples, None
        # Trained tokens, their weights, or pairs. Summed in float64, because float32 has whole numbers up to 16.8
        # million only, and a step may have more tokens.
        units = torch.tensor(sum(batch[TARGETS].units for batch in samples), device=device, dtype=torch.float64)
        if self.args.world_size > 1:
            units = self.accelerator.gather(units).sum()
        return samples, torch.where(units > 0, units, 1).float()  # a step without a trained token has the loss 0

    # Loss

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """This micro-batch's part of the step's loss, times the number of ranks, because gradients are averaged over
        ranks.

        Args:
            inputs: a micro-batch of `get_batch_samples`.
            return_outputs: of transformers' signature; ignored, as the trainer evaluates by itself.
            num_items_in_batch: what the step's loss is divided by, also of `get_batch_samples`.
        """
        batch = dict(inputs)
        targets = batch.pop(TARGETS).to(self.args.device)
        self._check_attention()
        if not self.begun:
            self._begin(batch)
        ranks = self.accelerator.num_processes
        # The micro-batch's weight in a mean over the step, such as an auxiliary loss; transformers sets how many
        # micro-batches this step has.
        share = 1 / (ranks * max(1, self.current_gradient_accumulation_steps))
        is_first = self.state.global_step == 0
        with offloaded(self.model) if self.offloads else nullcontext():
            loss = self.objective.loss(model, batch, targets, num_items_in_batch, share=share, is_first_step=is_first)
        return loss * ranks

    def _check_attention(self) -> None:
        """Raise LeakError if something has changed the attention since training began."""
        attention = str(self.model.config._attn_implementation)
        if attention != self.applied.name:
            raise LeakError(
                f"the step is not taken: attention was {self.applied.name} when training began, and is {attention} "
                "now; something set it in between"
            )

    def _begin(self, batch: Mapping[str, Any]) -> None:
        """With the first batch, whose device is known: say what computes attention, look at weights that were loaded,
        and probe the model as it trains, wrapped, compiled and checkpointed.

        Raises:
            LeakError: documents see each other, with what to do.
            PacktrainError: weights of the checkpoint are NaN or infinite.
        """
        self.applied = applied_on(self.model, batch["input_ids"].device)
        self.say(f"attention: {self.applied.name}, {self.applied.kernel} ({self.applied.reason})")
        if self.resumed_from is not None:
            self._require_finite_weights()  # files of the same size may still be damaged
        if self.has_proof:
            # Within autocast, which the model's forward enters by itself: it tells the probe what rounding to expect.
            with self.meter.paused(), self.accelerator.autocast():
                report = probe(self.model_wrapped, batch=batch, device=self.args.device)
            self.proved = report.require()
            forget_compiled(self.model_wrapped)  # torch compiles for few kinds of inputs, and the probe has its own
            self.say(f"isolation proved: {report.values}")
        self.begun = True

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log, with the figures of the objective and the meter since the last line, over all ranks.

        Raises:
            PacktrainError: the loss, or a weight, is NaN or infinite.
        """
        if "loss" in logs:
            logs.update(self.objective.figures(self._sum_of_ranks, self.args.device))
            logs.update(self.meter.collect())
        super().log(logs, *args, **kwargs)
        # float16's scaler may yet skip such a step; anywhere else the weights are lost, and must not be saved.
        if not math.isfinite(logs.get("loss", 0)) and not self.args.fp16:
            raise PacktrainError(
                f"the loss is not a number at step {self.state.global_step:,}, so the weights are unusable, and "
                "nothing more is saved. Lower trainer.learning_rate, warm up longer, or look at the data and at the "
                "model's weights. Checkpoints before it are kept"
            )
        # Such a norm does no harm if the step was skipped, so the weights decide.
        if not math.isfinite(logs.get("grad_norm", 0)):
            self._require_finite_weights()

    def _sum_of_ranks(self, values: torch.Tensor) -> torch.Tensor:
        """A tensor's sum over all ranks, each of which must call it."""
        if self.accelerator.num_processes == 1:
            return values
        summed: torch.Tensor = self.accelerator.reduce(values, "sum")
        return summed

    def _require_finite_weights(self) -> None:
        """Look for NaN and infinity in all weights. Every rank must call it: weights may be sharded.

        Raises:
            PacktrainError: some weights are NaN or infinite, on any rank.
        """
        spoilt = checkpoint.find_not_finite(self.model_wrapped.named_parameters())
        flag = torch.tensor([int(spoilt is not None)], device=self.args.device)
        if self.args.world_size > 1:
            flag = self.accelerator.gather(flag).max()
        if not int(flag):
            return
        where = "on another rank" if spoilt is None else f"for example in {spoilt}"
        raise PacktrainError(
            f"the weights hold NaN or infinity at step {self.state.global_step:,}, {where}, although the loss may be "
            "finite; nothing more is saved. Lower trainer.learning_rate, warm up longer, set trainer.max_grad_norm, or "
            "look at the data. Checkpoints before it are kept"
        )

    # Evaluation

    def evaluate(
        self, eval_dataset: HeldOut | None = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """The loss on held-out rows: `eval_loss`, and `eval_loss_{source}` for each source; see `held_out_metrics`.

        Args:
            eval_dataset: the rows; None for those of the configuration.

        Raises:
            ConfigError: there are none.
        """
        held_out = eval_dataset if eval_dataset is not None else self.eval_dataset
        if held_out is None:
            raise ConfigError("there is nothing to evaluate on; set eval in the configuration")
        source_names = held_out.sources.names
        columns = self.objective.columns
        # A row for each source, with the sum of each column over the source's documents.
        sums = torch.zeros(len(source_names), len(columns), dtype=torch.float64)
        reference = None if self.reference is None else self.reference.held_out
        rank = self.accelerator.process_index
        ranks = self.accelerator.num_processes
        was_training = self.model.training
        self.model_wrapped.eval()
        with self.meter.paused(), torch.no_grad():
            for batch, sources in held_out.batches(rank, ranks, reference):
                targets = self.objective.targets(batch).to(self.args.device)
                inputs = self._prepare_inputs(batch)
                # By document first, because a batch has documents of several sources. Then the row of each document is
                # added to the row of its source: `sources` holds (D,) the numbers of these rows.
                of_documents = self.objective.document_columns(self.model_wrapped, inputs, targets)
                sums.index_add_(0, torch.from_numpy(sources), of_documents.cpu())
        sums = self._sum_of_ranks(sums.to(self.args.device))
        self.model_wrapped.train(was_training)
        metrics = held_out_metrics(sums, columns, source_names, metric_key_prefix)
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)  # type: ignore[has-type]
        return metrics

    # Checkpoints and the finished model

    def train(self, resume_from_checkpoint: str | Path | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train, from the beginning or from a checkpoint.

        Raises:
            ConfigError: the checkpoint is not whole, or is of another training.
            LeakError: documents of a row see each other.
        """
        step = 0
        state = self.beginning
        if resume_from_checkpoint is not None:
            folder = Path(resume_from_checkpoint)
            resumed = checkpoint.read_checkpoint(folder)
            resumed.refuse_other_settings(self.settings, folder)
            self.resumed_from = folder
            step = resumed.step
            state = resumed.loader
        # Of the checkpoint's state only the order counts; how many rows were read follows from the steps.
        self.loader.load_state_dict({**state, "rows": step * self.loader.rows_per_step})
        if step >= self.args.max_steps:
            self.say(f"{plural(step, 'step was', 'steps were')} made already, none is left")
        # None lets transformers begin without loading anything: before the first step there is nothing to load.
        return super().train(None if step == 0 else str(resume_from_checkpoint), *args, **kwargs)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Write a checkpoint of transformers, what packtrain adds to it, and its marker last.

        Raises:
            PacktrainError: the weights are not finite; nothing is written.
            StoreError: writing failed; earlier checkpoints are intact.
        """
        self._require_finite_weights()
        folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
        if self.args.should_save:
            (folder / checkpoint.MARKER).unlink(missing_ok=True)  # it is written over
        # Old ones are deleted only when this one is whole: transformers would do it before the marker is written.
        keep = self.args.save_total_limit
        self.args.save_total_limit = None  # transformers then deletes none
        # A function, because such a context can be entered only once, and is entered twice.
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
                # As transformers would have done it.
                rotate_checkpoints(
                    str(folder.parent),
                    save_total_limit=keep,
                    best_model_checkpoint=self.state.best_model_checkpoint,
                    use_mtime=True,
                )

    def export(self, folder: Path) -> None:
        """Write the model and its tokenizer. Every rank calls it: weights may be sharded.

        Raises:
            PacktrainError: weights are NaN or infinite.
            StoreError: writing failed.
        """
        self._require_finite_weights()
        config = self.model.config
        use_cache = getattr(config, "use_cache", None)
        config.use_cache = True  # it is off for training only
        with checkpoint.writing(f"the finished model in {folder}"):
            try:
                if self.is_fsdp_enabled:  # where `save_model` writes pieces, or nothing
                    state = self.accelerator.get_state_dict(self.model_wrapped)  # every rank gives; whole on the first
                    if self.args.should_save:
                        self._save(str(folder), state_dict=state)
                else:
                    self.save_model(str(folder))
            finally:
                config.use_cache = use_cache
            if self.args.should_save:
                (folder / "training_args.bin").unlink(missing_ok=True)  # a pickle of this machine's paths
                if self.tokenizer is not None:
                    self.tokenizer.save_pretrained(str(folder))
            self.accelerator.wait_for_everyone()
