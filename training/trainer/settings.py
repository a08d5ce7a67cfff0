"""transformers.TrainingArguments of a configuration, what packtrain fills in there, what cannot be combined, and the
lock of an output folder.

transformers, accelerate and torch refuse most mistakes themselves. Refused here is what would train wrongly without an
error.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from ...schemas.errors import BusyError, ConfigError, did_you_mean
from ...schemas.files import lock
from ..place import divisible
from .config import CUT, OWNED, TrainConfig

_LOG = logging.getLogger(__name__)
LOCK = ".training.lock"
_HELD: set[Path] = set()
"""Folders whose lock this process holds: `train` locks, and its PackedTrainer would lock again."""
_DEFAULTS = {
    "report_to": ["tensorboard"] if find_spec("tensorboard") else [],
    "logging_steps": 10,
    "logging_first_step": True,
    "logging_nan_inf_filter": False,  # a NaN should be seen; looking for it costs a synchronisation a batch
}
"""packtrain's defaults for keys that a configuration leaves out."""


@contextmanager
def locked(out: Path, rank: int) -> Iterator[None]:
    """Hold an output folder, which is made if needed: two trainings would write into each other's checkpoints.

    Only the first rank holds it. The kernel drops the lock when the process ends, however it ends.

    Raises:
        BusyError: another training works on it.
        ConfigError: the folder cannot be written.
    """
    folder = out.resolve()
    if rank != 0 or folder in _HELD:
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigError(f"out: {out} cannot be written as a folder ({error.strerror}); name another") from error
    lock.own(descriptor)
    _HELD.add(folder)
    try:
        if lock.lock(descriptor, wait=False) is False:
            raise BusyError(f"out: another training works on {out}. Let it finish, stop it, or name another folder")
        yield
    finally:
        _HELD.discard(folder)
        lock.release(descriptor)


def accumulation(rows_per_step: int, rows_per_device: int, ranks: int) -> int:
    """Micro-batches of each rank in a step.

    Raises:
        ConfigError: the rows cannot be divided among the ranks.
    """
    return divisible(rows_per_step, ranks * rows_per_device) // (ranks * rows_per_device)


def training_arguments(config: TrainConfig, base: Path, ranks: int) -> Any:
    """transformers.TrainingArguments of a configuration. It also joins the process group, where there are ranks.

    Args:
        base: where the paths of files start.

    Raises:
        ConfigError: a key is unknown, or transformers refuses a value; quotes transformers.
    """
    from transformers import TrainingArguments

    types = {field.name: type(field.default) for field in fields(TrainingArguments) if field.init}
    given: dict[str, Any] = dict(_DEFAULTS)
    if not torch.accelerator.is_available():
        given["use_cpu"] = True  # transformers asks for it before it computes in bfloat16 on a CPU
    for key, value in config.trainer.items():
        if key not in types:
            raise ConfigError(
                f"trainer.{key}: transformers.TrainingArguments has no such key{did_you_mean(key, sorted(types))}"
            )
        # transformers 5.23 renamed gradient checkpointing, and warns of the old name.
        new = key.replace("gradient_checkpointing", "activation_checkpointing")
        if isinstance(value, str) and types[key] in (int, float):
            value = _number(key, value)
        elif key in ("deepspeed", "fsdp_config") and isinstance(value, str) and (base / value).is_file():
            value = str(base / value)
        given[new if new in types else key] = value
    if config.eval is not None:
        given |= {"eval_strategy": "steps", "eval_steps": config.eval.every or given.get("save_steps", 500)}
    try:
        return TrainingArguments(
            **given,
            output_dir=str(base / config.out),
            seed=config.seed,
            # DeepSpeed's "auto" values are computed from these two when the arguments are made.
            per_device_train_batch_size=config.rows_per_device,
            gradient_accumulation_steps=accumulation(config.rows_per_step, config.rows_per_device, ranks),
        )
    except (ValueError, TypeError, ImportError, NotImplementedError) as error:
        raise ConfigError(
            f"trainer: transformers.TrainingArguments refuses it: {error}; fix that key, or leave it out"
        ) from error


def _number(key: str, text: str) -> int | float:
    """YAML reads 1e-3 as text, which transformers would take and fail on late."""
    try:
        number = float(text)
    except ValueError:
        raise ConfigError(f"trainer.{key}: {text!r} is not a number; write one") from None
    return int(number) if number.is_integer() else number


def fill_in(args: Any, *, parts: int, rows_per_device: int, steps: int, unused_weights: bool) -> None:
    """Set the TrainingArguments that follow from the rows.

    Args:
        parts: micro-batches of a rank in a step.
        unused_weights: some weights may get no gradient in a step.

    Raises:
        ConfigError: they hold something else already.
    """
    if args.gradient_accumulation_steps not in (1, parts):
        raise ConfigError(
            f"args.gradient_accumulation_steps={args.gradient_accumulation_steps}, but rows_per_step makes it {parts}: "
            "leave it out, and choose rows_per_step and rows_per_device"
        )
    for key in ("label_smoothing_factor", "neftune_noise_alpha"):
        if getattr(args, key):
            raise ConfigError(f"args.{key}: {OWNED[key]}; leave it out")
    if args.n_gpu > 1:
        _LOG.warning("this process uses one of %d GPUs; start one process for each, with torchrun", args.n_gpu)
        args._n_gpu = 1  # transformers would split batches by nn.DataParallel
    args.gradient_accumulation_steps, args.per_device_train_batch_size = parts, rows_per_device
    args.max_steps = steps
    if args.ddp_find_unused_parameters is None:  # looking for them costs a walk through the graph in every step
        args.ddp_find_unused_parameters = unused_weights
    args.remove_unused_columns, args.ignore_data_skip, args.average_tokens_across_devices = False, True, True


def refuse_conflicts(model: Any, args: Any, *, liger: bool, offloads: bool) -> None:
    """Refuse combinations that would train wrongly, or fail late and unclearly.

    Args:
        args: transformers.TrainingArguments.
        liger: the loss is computed by Liger's kernel.
        offloads: activations are kept in the host's memory.

    Raises:
        ConfigError: names all combinations at fault, each with its reason and fix.
    """

    found = []
    if liger and offloads:
        found.append(
            "loss_kernel: liger with offload_activations: Liger's cross-entropy writes gradients over its inputs, of "
            "which offloading holds copies. Take loss_kernel: chunked, or leave offloading out"
        )
    if offloads and args.torch_compile and args.torch_compile_mode in ("reduce-overhead", "max-autotune"):
        found.append(
            "trainer.torch_compile_mode with offload_activations: a CUDA graph writes its activations to the same "
            "memory at every replay, while they are still copied to the host. Leave one of the two out"
        )
    if any(weight.requires_grad and weight.dtype == torch.float16 for weight in model.parameters()):
        found.append(
            "model.dtype: float16: small updates of float16 weights are lost, and the loss scaler refuses float16 "
            "gradients. Take model: {dtype: float32} with trainer: {fp16: true}, or model: {dtype: bfloat16}"
        )
    if found:
        raise ConfigError("\n".join(found))


def refuse_parallelism(accelerator: Any) -> None:
    """Refuse context, sequence and tensor parallelism, which a launcher may have set.

    Raises:
        ConfigError: one of them is on.
    """
    found = getattr(accelerator, "parallelism_config", None)
    for name in ("cp", "sp", "tp"):
        if found is not None and getattr(found, f"{name}_enabled", False):
            size = getattr(found, f"{name}_size")
            raise ConfigError(f"leave parallelism_config.{name}_size={size} out: {CUT}")
