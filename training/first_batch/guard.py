"""A guard for trainings in any trainer: the first batch that reaches a model must be what was packed.

1. Its tokens are documents of the dataset, found by content; the rest is padding.
2. Its labels are those of the dataset, as far as they can be seen.
3. Through the model as it is, no document has a gradient with respect to another's embeddings.

It looks before the first optimizer step, within the first forward pass, and raises there. A batch without two documents
in a row shows nothing of the third, so the guard goes on watching for some batches.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.hooks import RemovableHandle
from transformers import TrainerCallback

from ...schemas.errors import ConfigError, LeakError, PacktrainError
from ...schemas.units import plural
from ..attention.model_parts import wrappers_of
from ..model import name_dataset
from ..packed_rows import PackedRows
from .documents import DocumentFinder, FoundDocument
from .isolation import find_leak
from .labels import judge_labels
from .ranks import highest_of_ranks, is_first_rank
from .trainers import LOSSES_THAT_DO_NOT_SHIFT, Caller, advise, find_caller

MOST_BATCHES = 8
"""Batches that are looked at until a row has several documents."""
MOST_PROBLEMS = 3
"""Problems of one kind that a message names."""
_CALL_WHAT_THEY_WRAP = ("DistributedDataParallel", "FullyShardedDataParallel", "DeepSpeedEngine")
"""Wrappers by which hooks of what they wrap run; in others they may not."""


class PackedGuard(TrainerCallback):  # type: ignore[misc]  # transformers is not followed
    """A callback for trainers of transformers: `callbacks=[PackedGuard("packed")]`. For any other, see `guard`.

    The hash of the dataset's manifest goes into the model's configuration, as `packtrain/dataset`.

    Args:
        data: folder or URL that `packtrain run` wrote.
        split: the one that trains.

    Raises:
        InputError, IntegrityError: see `PackedRows`. In training LeakError: what reaches the model is not what was
            packed; says what to change.
    """

    def __init__(self, data: str | Path, split: str = "train") -> None:
        self._rows = PackedRows(data, split)
        if self._rows.shares_tokens:
            raise ConfigError(
                f"{data} has rows whose documents share tokens (pack.share), which the guard does not know; "
                "packtrain.training.probe(model, batch=batch) proves that the first batch keeps them apart"
            )
        self._finder = DocumentFinder(self._rows)
        self._hooks: list[RemovableHandle] = []
        self._checking = False
        self._batches = 0

    def on_init_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """See transformers."""
        name_dataset(_model_in(model), self._rows)

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """See transformers."""
        self.watch(model)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """See transformers."""
        if self._hooks and not self._batches:
            raise LeakError(
                "the guard saw no batch: the trainer does not call the model that it shows to callbacks. Call "
                "packtrain.training.guard(model, data) with the one that it calls"
            )

    def watch(self, model: Any) -> None:
        """Look at the batches of a model in training, until one has shown that all is right."""
        self._stop()
        self._batches = 0
        # A hook on each: some trainers call the wrapper, some what it wraps; the first one that runs looks.
        for module in wrappers_of(_model_in(model)):
            # These call what they wrap by its `__call__`, so that its own hook runs, and would look twice with another.
            if type(module).__name__ not in _CALL_WHAT_THEY_WRAP:
                self._hooks.append(module.register_forward_pre_hook(self._look, with_kwargs=True, prepend=True))

    def _stop(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _look(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._checking or not self._hooks or not module.training or not torch.is_grad_enabled():
            return  # a pass of the check itself, an evaluation, or a generation
        self._checking = True
        try:
            self._check(module, args, kwargs)
        finally:
            self._checking = False

    def _check(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Look at a batch. All ranks make the same passes, and fail together."""
        device = next(module.parameters()).device
        caller = find_caller()
        self._batches += 1
        contents = _Contents()
        failure: PacktrainError | None = None
        try:
            contents = self._read(args, kwargs, caller)
        except PacktrainError as error:
            failure = error
        problems = contents.problems
        documents = contents.documents
        # The passes are collective where the model is sharded: all ranks make them, or none.
        if not highest_of_ranks(int(not documents), device):
            leak = find_leak(module, args, kwargs, contents.shape, documents)
            if leak:
                problems.append(leak)
        if highest_of_ranks(int(bool(problems or failure)), device):
            self._stop()
            if failure is not None:
                raise failure
            raise LeakError(
                _describe(problems, caller, kwargs)
                if problems
                else "another rank got a batch that is not what was packed; its message says what to do"
            )
        rows = len({document.row for document in documents})
        several = bool(highest_of_ranks(int(len(documents) > rows), device))
        checked = f"{plural(len(documents), 'document')} in {plural(rows, 'row')} of batch {self._batches}"
        notes = f" ({contents.note})" if contents.note else ""
        if several:
            _say(f"packed documents are kept apart: {checked} checked{notes}")
        elif self._batches == MOST_BATCHES:
            alone = f"no row of {MOST_BATCHES} batches has two documents, so none can see another"
            _say(f"{alone}: {checked} checked{notes}")
        elif self._batches == 1:
            _say(
                f"every document has a row of its own: {checked}; watching up to {MOST_BATCHES} batches for two in a "
                "row"
            )
        if several or self._batches == MOST_BATCHES:
            self._stop()

    def _read(self, args: tuple[Any, ...], kwargs: dict[str, Any], caller: Caller) -> "_Contents":
        """What is in a batch: its documents, and what is wrong with tokens, labels and positions.

        Raises:
            IntegrityError: the dataset is damaged.
        """
        # Models of transformers take `input_ids`, torchtune's `tokens`; others their first argument.
        ids = kwargs.get("input_ids", kwargs.get("tokens", args[0] if args else None))
        if not isinstance(ids, torch.Tensor) or ids.is_floating_point():
            return _Contents(problems=["input_ids do not reach the model, so the batch could not be checked"])
        ids = ids.reshape(-1, ids.shape[-1])
        shape = (ids.shape[0], ids.shape[1])
        mask = kwargs.get("attention_mask")
        # A mask of another shape, such as (B, 1, T, T), says which tokens see which, and not what is padding.
        is_padding_mask = isinstance(mask, torch.Tensor) and mask.shape == shape
        padding = torch.eq(mask, 0).cpu().numpy() if is_padding_mask else np.zeros(shape, bool)
        tokens = ids.cpu().numpy()
        documents, gaps = self._finder.find(tokens, padding)
        problems = [self._finder.describe(tokens, gap) for gap in gaps[:MOST_PROBLEMS]]
        if len(gaps) > MOST_PROBLEMS:
            problems.append(f"and {len(gaps) - MOST_PROBLEMS:,} more such parts")
        note, wrong_labels = _judge(_labels_of(kwargs, caller, shape), caller, documents, complete=not gaps)
        positions = kwargs.get("position_ids", kwargs.get("input_pos"))
        wrong_positions = ""
        if isinstance(positions, torch.Tensor) and positions.shape == shape:
            count = _wrong_positions(positions.cpu().numpy(), documents)
            wrong_positions = (
                f"position_ids do not start at 0 in {count} of {len(documents)} documents" if count else ""
            )
        problems += [problem for problem in (wrong_labels, wrong_positions) if problem]
        return _Contents(shape, documents, problems, note)


def guard(trainer_or_model: Any, data: str | Path, split: str = "train") -> PackedGuard:
    """Check the first batch that a model gets in training, in any trainer or loop, and stop what is wrong.

    Args:
        trainer_or_model: a trainer of transformers; of others the model, as soon as it is made, also within PEFT, DDP,
            FSDP, torch.compile or a LightningModule.
        data: folder or URL that `packtrain run` wrote.
        split: the one that trains.

    Raises:
        ConfigError: it has no model.
        InputError, IntegrityError: see `PackedRows`. In training LeakError, see `PackedGuard`.
    """
    packed_guard = PackedGuard(data, split)
    if hasattr(trainer_or_model, "add_callback"):
        trainer_or_model.add_callback(packed_guard)
        # transformers calls it for callbacks that a trainer is made with, so not for this one.
        packed_guard.on_init_end(None, None, None, model=trainer_or_model.model)
        return packed_guard
    if not isinstance(trainer_or_model, torch.nn.Module):
        raise ConfigError(
            f"guard: {type(trainer_or_model).__name__} is neither a trainer of transformers nor a model; give the "
            "model that it trains"
        )
    packed_guard.watch(trainer_or_model)
    packed_guard.on_init_end(None, None, None, model=trainer_or_model)
    return packed_guard


@dataclass(slots=True)
class _Contents:
    """What is in a batch."""

    shape: tuple[int, int] = (0, 0)
    documents: list[FoundDocument] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    note: str = ""
    """What could not be seen."""


class _Labels(NamedTuple):
    """The labels of a batch."""

    values: NDArray[np.int64]
    """(B, T)"""
    shifts: bool | None
    """Whether who takes them shifts them; None if that is not known."""


def _model_in(model: Any) -> Any:
    """The model of transformers in a module that holds one, as a LightningModule does; else the module itself."""
    if hasattr(wrappers_of(model)[-1], "get_input_embeddings"):
        return model
    return next((part for part in model.modules() if hasattr(part, "get_input_embeddings")), model)


def _labels_of(kwargs: dict[str, Any], caller: Caller, shape: tuple[int, int]) -> _Labels | None:
    """Those that the model gets; if they were taken out before, those in the calling frames; None if there are none."""
    # transformers' models take `shift_labels` as they are, and shift `labels`.
    for name, shifts in (("shift_labels", False), ("labels", True)):
        if isinstance(labels := kwargs.get(name), torch.Tensor) and labels.numel() == shape[0] * shape[1]:
            return _Labels(labels.reshape(shape).cpu().numpy(), shifts)
    labels = next((labels for labels in caller.labels if labels.shape == shape), None)
    if labels is None:
        return None
    does_not_shift = any(name in caller.names for name in LOSSES_THAT_DO_NOT_SHIFT)
    return _Labels(labels.cpu().numpy(), False if does_not_shift else None)


def _judge(
    labels: _Labels | None, caller: Caller, documents: list[FoundDocument], *, complete: bool
) -> tuple[str, str]:
    """(what could not be judged, what is wrong) of labels; empty if nothing is."""
    if labels is None:
        return "its labels could not be seen", ""
    problem, shifted, judged = judge_labels(labels.values, documents, complete=complete)
    if problem or not judged:
        return "", problem
    # Each label must be shifted once: by the batch or by who computes the loss.
    match labels.shifts, shifted:
        case True, True:
            return "", "labels reach the model already shifted, and the model shifts them again"
        case False, False:
            return "", f"labels are not shifted, and the loss of {caller.name} does not shift them"
        case None, True:
            return "labels could not be judged: they are shifted, which is wrong if the loss shifts them again", ""
        case None, False:
            return "its labels are computed with outside of the model, by a loss that must shift them", ""
    return "", ""


def _wrong_positions(positions: NDArray[np.int64], documents: list[FoundDocument]) -> int:
    """In how many documents positions are not 0, 1, 2 and so on."""
    return sum(
        (positions[document.row, document.begin : document.end] != np.arange(document.end - document.begin)).any()
        for document in documents
    )


def _describe(problems: list[str], caller: Caller, batch: dict[str, Any]) -> str:
    problem = "; ".join(problems)
    advice = advise(caller, batch, problem)
    return f"what {caller.name} gives the model is not what was packed, and nothing was trained: {problem}" + (
        f". To do: {advice}" if advice else ""
    )


def _say(text: str) -> None:
    if is_first_rank():
        print(f"packtrain: {text}", flush=True)
