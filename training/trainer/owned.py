"""Keys of transformers.TrainingArguments that packtrain decides, and what to write in their place."""

from collections.abc import Mapping
from typing import Any

_LOADER = "packtrain's own loader makes the batches, in threads; see loader.num_workers and loader.prefetch"
_COLUMNS = "packtrain's batches have the columns that packed attention needs, and no others"
_EVAL = "use eval: {every: N}"

OWNED: dict[str, str] = {
    "output_dir": "use out",
    "per_device_train_batch_size": "a batch is counted in packed rows: use rows_per_device",
    "train_batch_size": "a batch is counted in packed rows: use rows_per_device",
    "gradient_accumulation_steps": "it follows from rows_per_step / (ranks · rows_per_device), so that a step is the "
    "same rows on any number of ranks: use rows_per_step",
    "per_device_eval_batch_size": "use eval: {rows_per_device: N}",
    "eval_batch_size": "use eval: {rows_per_device: N}",
    "num_train_epochs": "steps may cross epochs: use epochs",
    "eval_strategy": _EVAL,
    "eval_steps": _EVAL,
    "eval_on_start": _EVAL,
    "do_eval": "use eval",
    "do_train": "packtrain train trains",
    "do_predict": "packtrain train only trains",
    "dataloader_num_workers": _LOADER,
    "dataloader_prefetch_factor": _LOADER,
    "dataloader_persistent_workers": _LOADER,
    "dataloader_pin_memory": "memory is page-locked where there is a GPU",
    "dataloader_drop_last": "use loader: {tail: drop | pad | repeat}",
    "dataloader_multiprocessing_context": _LOADER,
    "dataloader_in_order": _LOADER,
    "accelerator_config": "it splits or dispatches batches, and the loader has divided the rows among the ranks "
    "already: leave it out",
    "remove_unused_columns": _COLUMNS,
    "label_names": _COLUMNS,
    "group_by_length": "rows are full; use loader: {balance: …} for rows of similar cost",
    "train_sampling_strategy": "use loader: {order: full | blocks | sequential}",
    "length_column_name": "there is no column of lengths",
    "data_seed": "use seed",
    "seed": "use seed",
    "ignore_data_skip": "the loader resumes at its position, so there is nothing to skip",
    "average_tokens_across_devices": "the loss is always the mean over the tokens of all ranks",
    "auto_find_batch_size": "it would change which rows a step holds: lower rows_per_device, which does not",
    "label_smoothing_factor": "the loss is the plain cross-entropy",
    "neftune_noise_alpha": "its noise is scaled by the length of a row, and would be too little for the documents in "
    "it",
    "resume_from_checkpoint": "use resume: auto | never | the checkpoint's folder",
    "torch_compile": "use compile: true",
    "torch_compile_backend": "use compile: {backend: …}",
    "torch_compile_mode": "use compile: {mode: …}",
    "use_liger_kernel": "use loss_kernel: liger",
    "liger_kernel_config": "use loss_kernel: liger",
    "use_cache": "a cache's mask lets the documents of a row see each other",
    "disable_tqdm": "packtrain prints a line at every logging step",
    "prediction_loss_only": "evaluation measures the loss only",
    "batch_eval_metrics": "evaluation measures the loss only",
    "include_for_metrics": "evaluation measures the loss only",
    "eval_accumulation_steps": "evaluation keeps no predictions",
    "eval_do_concat_batches": "evaluation keeps no predictions",
    "parallelism_config": "context and sequence parallelism cut rows across ranks and drop the bounds between "
    "documents, and the loader gives each rank rows of its own, which tensor parallelism must not have; use "
    "FSDP (trainer.fsdp)",
    "local_rank": "the launcher (torchrun, accelerate launch) sets it",
}
"""Key → why it is refused, and the key to use."""


def check_owned(trainer: Mapping[str, Any]) -> None:
    """Raise ValueError for keys below `trainer:` that packtrain decides; names all of them."""
    found = [f"trainer.{key} cannot be set: {OWNED[key]}" for key in trainer if key in OWNED]
    for name in ("save_strategy", "logging_strategy"):
        if str(trainer.get(name, "")).rpartition(".")[2].lower() == "epoch":
            steps = name.replace("strategy", "steps")
            found.append(f"trainer.{name}: steps may cross epochs; use steps, with {steps}")
    for name in ("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"):
        value = trainer.get(name)
        if isinstance(value, Mapping) and value.get("use_reentrant"):
            found.append(
                f"trainer.{name}: use_reentrant: true drops keyword arguments of a layer, including the documents' "
                "boundaries; leave it out"
            )
    if found:
        raise ValueError("; ".join(found))
