"""Which trainer calls the model, and which of its settings keep packed documents apart."""

import sys
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

TRL_SETTINGS = {"packing": False, "padding_free": True, "max_length": None}
"""Settings of SFTConfig for packed rows: rows that are packed already, neither packed again nor cut."""
LOSSES_THAT_DO_NOT_SHIFT = ("nemo_automodel", "torchtitan")
"""Trainers which want labels that stand at the token before them already."""
_BELOW = ("torch", "accelerate", "peft", "transformers", "packtrain", "lightning", "pytorch_lightning")
"""Packages that call a model for a trainer or a loop, and so are not what has to change."""
ADVICE = {
    "llamafactory": "LLaMA-Factory: take tokenized_path of packtrain export --to llama-factory, and neat_packing: true",
    "swift": "ms-swift: take cached_dataset of packtrain export --to ms-swift, padding_free: true and attn_impl: "
    "flash_attention_2",
    "axolotl": "Axolotl: take the folder as it is, skip_prepare_dataset: true, sample_packing: false and "
    "micro_batch_size: 1",
    "verl": "verl: model.use_remove_padding=True",
    "unsloth": "Unsloth drops padding_free where it cannot use it, as on a CPU: give SFTTrainer "
    "data_collator=packtrain.training.collate, and SFTConfig remove_unused_columns=False and "
    "dataset_kwargs={'skip_prepare_dataset': True}; where it has these, take TRL itself",
}
"""A part of the name of a trainer's modules → what to do where documents see each other."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who called the model, as the stack shows it."""

    trainer: Any
    """The object that computes the loss; None if there is none with a method `compute_loss`."""
    package: str
    """The package of the nearest frame outside of `_BELOW`: a trainer's or the user's; empty if there is none."""
    names: str
    """The trainer's classes, with their modules, and the modules of such frames; one text in lower case."""
    labels: tuple[torch.Tensor, ...]
    """Labels that frames hold in variables or batches, those of the nearest frame first."""

    @property
    def name(self) -> str:
        """What messages call it: the trainer's class, or else the package."""
        if self.trainer is not None:
            return type(self.trainer).__name__
        return "this loop" if self.package in ("", "__main__") else self.package

    @property
    def wants_shifted_labels(self) -> bool:
        """Whether its loss is known not to shift labels; False also if nothing is known of it."""
        return any(name in self.names for name in LOSSES_THAT_DO_NOT_SHIFT)


def find_caller() -> Caller:
    """Look at the frames of the stack, from the model's forward outwards.

    The model gets no reference to its trainer, and a trainer that computes the loss itself takes the labels out of the
    batch: the stack is the one place where both can be seen, whatever the trainer is.
    """
    trainer: Any = None
    modules: list[str] = []
    labels: list[Any] = []
    frame: FrameType | None = sys._getframe(1)  # of who called this function; 0 would be its own
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        package = name.partition(".")[0]
        # Frames of torch and of models hold labels that were changed already, or other tensors of that name.
        if package not in ("torch", "packtrain") and not name.startswith("transformers.models"):
            values = dict(frame.f_locals)  # a copy: f_locals changes while the frame runs
            # A variable of that name, or a key of a batch.
            labels.append(values.get("labels"))
            labels += [value.get("labels") for value in values.values() if isinstance(value, dict)]
            if trainer is None and hasattr(type(values.get("self")), "compute_loss"):
                trainer = values["self"]
        if package not in _BELOW:
            modules.append(name)
        frame = frame.f_back
    classes = type(trainer).__mro__ if trainer is not None else ()
    names = [f"{kind.__module__}.{kind.__name__}" for kind in classes] + modules
    nearest = modules[0].partition(".")[0] if modules else ""
    tensors = tuple(value for value in labels if isinstance(value, torch.Tensor))
    return Caller(trainer, nearest, " ".join(names).lower(), tensors)


def advise(caller: Caller, batch: dict[str, Any], problem: str) -> str:
    """Which settings of this trainer to change; for a trainer that is not known, what the batch lacks.

    Args:
        batch: what the model gets.
        problem: what is wrong with it, in words.

    Returns:
        Empty if there is no advice.
    """
    # The case is told by words of the problem. `find_leak` writes that other documents see one; the guard writes of
    # rejected answers; and `judge_labels` writes how labels are shifted.
    sees_others = " see " in problem
    for name, advice in ADVICE.items():
        if name in caller.names and sees_others:
            return advice
    if "rejected answers" in problem:
        return "take packtrain train, or a loop with packtrain.training.preference_loss"
    if "shifts them again" in problem:
        return "give the model the labels as they are packed, unshifted"
    if caller.wants_shifted_labels and "shift" in problem:
        return f"{caller.name}: take packtrain.training.PackedDataset with shift_labels=True"
    if advice := _advise_on_trainer(caller):
        return advice
    sentences = []
    mask = batch.get("attention_mask")
    if isinstance(mask, torch.Tensor) and mask.ndim == 2 and bool((mask == 1).all()):
        sentences.append("the batch has an attention_mask of ones: leave it out")
    if batch.get("position_ids") is None and batch.get("cu_seq_lens_q") is None:
        sentences.append("neither position_ids nor cu_seq_lens_q reach the model: take packtrain.training.collate")
    if batch.get("use_cache") is not False and sees_others:  # a cache's mask lets them
        sentences.append("pass use_cache=False")
    return "; ".join(sentences)


def _advise_on_trainer(caller: Caller) -> str:
    """The settings of TRL's SFTTrainer to change, or the collator of a Trainer; empty if they are right or not seen."""
    trainer = caller.trainer
    if "sft_trainer.sfttrainer" in caller.names:  # trl.trainer.sft_trainer.SFTTrainer, in lower case
        actual = {name: getattr(trainer.args, name, "?") for name in TRL_SETTINGS}  # "?": this version lacks it
        wrong = [f"{name}={value} (is {actual[name]})" for name, value in TRL_SETTINGS.items() if actual[name] != value]
        return f"in SFTConfig set {', '.join(wrong)}" if wrong else ""
    collator = getattr(trainer, "data_collator", None)
    if collator is None or getattr(collator, "__module__", "").startswith("packtrain."):
        return ""
    name = getattr(collator, "__name__", type(collator).__name__)
    return (
        f"give the trainer data_collator=packtrain.training.collate (is {name}), and remove_unused_columns=False in "
        "its arguments"
    )
