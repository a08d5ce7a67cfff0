"""A guard for trainings in any trainer: the first batch that reaches a model must be what was packed.

1. Its tokens are documents of the dataset, found by content; the rest is padding.
2. Its labels are those of the dataset, as far as they can be seen.
3. Through the model as it is, no document has a gradient with respect to another's embeddings.

It looks before the first optimizer step, within the first forward pass, and raises there. A batch without two documents
in a row shows nothing of the third, so the guard goes on watching for some batches.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.hooks import RemovableHandle
from transformers import TrainerCallback

from ...schemas.errors import ConfigError, LeakError, PacktrainError
from ...schemas.units import plural
from ..models.model import name_dataset
from ..models.model_parts import wrappers_of
from ..packed_rows import PackedRows
from ..rank_info import detect_rank, highest_of_ranks
from .caller import Caller, advise, find_caller
from .documents import DocumentFinder, FoundDocument
from .isolation import find_leak
from .labels import judge_labels

MOST_BATCHES = 8
"""Batches that are looked at until a row has several documents."""
_CALL_WHAT_THEY_WRAP = ("DistributedDataParallel", "FullyShardedDataParallel", "DeepSpeedEngine")
"""Wrappers by which hooks of what they wrap run; in others they may not."""


class Findings(NamedTuple):
    """What is known of a batch after it was compared with the dataset."""

    documents: list[FoundDocument]
    """The documents in it."""
    problems: list[str]
    """What is wrong with its tokens, labels and positions; empty if nothing is."""
    unjudged: str
    """Why its labels could not be judged; empty if they could."""


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
        """Of the model and its wrappers; empty while no batch is looked at."""
        self._checking = False
        """Whether a check is under way, whose own passes run the hooks again."""
        self._batches = 0
        """Batches looked at so far."""

    def on_init_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Put the hash of the dataset's manifest into the model's configuration."""
        name_dataset(_model_in(model), self._rows)

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Look at the batches from here on."""
        self.watch(model)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Raise LeakError if no batch was seen before a step: then the guard watches a model that is not called."""
        if self._hooks and not self._batches:
            raise LeakError(
                "the guard saw no batch: the trainer does not call the model that it shows to callbacks. Call "
                "packtrain.training.guard(model, data) with the one that it calls"
            )

    def watch(self, model: Any) -> None:
        """Look at the batches of a model in training, until one has shown that all is right."""
        self._stop()
        self._batches = 0
        # A hook on each: some trainers call the wrapper, some what it wraps. Of several that run, the first one looks.
        for module in wrappers_of(_model_in(model)):
            # Without one of their own, because they run the hooks of what they wrap: two would look at a batch twice.
            if type(module).__name__ not in _CALL_WHAT_THEY_WRAP:
                self._hooks.append(module.register_forward_pre_hook(self._look, with_kwargs=True, prepend=True))

    def _stop(self) -> None:
        """Look at no further batch."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _look(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The hook: check the batch with which a module is called, if the module trains."""
        if self._checking or not self._hooks or not module.training or not torch.is_grad_enabled():
            return  # a pass of the check itself, a pass after the last check, an evaluation, or a generation
        self._checking = True
        try:
            self._check(module, args, kwargs)
        finally:
            self._checking = False

    def _check(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Look at a batch. All ranks make the same passes, and fail together.

        Raises:
            LeakError: it is not what was packed.
            IntegrityError: the dataset is damaged.
        """
        device = next(module.parameters()).device
        caller = find_caller()
        self._batches += 1
        ids = _ids_of(args, kwargs)
        findings = Findings(documents=[], problems=[], unjudged="")
        failure: PacktrainError | None = None
        try:
            findings = self._read(ids, kwargs, caller)
        except PacktrainError as error:  # raised below: a rank that raised here would leave the others waiting
            failure = error
        documents = findings.documents
        problems = findings.problems
        # The passes are collective where the model is sharded: all ranks make them, or none does.
        some_rank_has_none = bool(highest_of_ranks(int(not documents), device))  # no documents, so nothing to test
        if ids is not None and not some_rank_has_none:
            leak = find_leak(module, args, kwargs, shape=(ids.shape[0], ids.shape[1]), documents=documents)
            if leak:
                problems.append(leak)
        if highest_of_ranks(int(bool(problems or failure)), device):
            self._stop()
            raise failure or LeakError(_describe(problems, caller, kwargs))
        rows = len({document.row for document in documents})
        # More documents than rows with one: some row has two. On any rank: all of them go on watching, or none does.
        has_neighbours = bool(highest_of_ranks(int(len(documents) > rows), device))
        checked = f"{plural(len(documents), 'document')} in {plural(rows, 'row')} of batch {self._batches}"
        unjudged = f" ({findings.unjudged})" if findings.unjudged else ""
        if has_neighbours:
            _say(f"packed documents are kept apart: {checked} checked{unjudged}")
        elif self._batches == MOST_BATCHES:
            alone = f"no row of {MOST_BATCHES} batches has two documents, so none can see another"
            _say(f"{alone}: {checked} checked{unjudged}")
        elif self._batches == 1:
            watching = f"watching up to {MOST_BATCHES} batches for two in a row"
            _say(f"every document has a row of its own: {checked}; {watching}")
        if has_neighbours or self._batches == MOST_BATCHES:
            self._stop()

    def _read(self, ids: torch.Tensor | None, kwargs: dict[str, Any], caller: Caller) -> Findings:
        """Compare a batch with the dataset.

        Args:
            ids: (B, T) tokens; None if the model was called without any.
            kwargs: with which the model is called.

        Raises:
            IntegrityError: the dataset is damaged.
        """
        if ids is None:
            return Findings(
                documents=[],
                problems=["input_ids do not reach the model, so the batch could not be checked"],
                unjudged="",
            )
        tokens = ids.cpu().numpy()
        mask = kwargs.get("attention_mask")
        # A mask of another shape, such as (B, 1, T, T), says which tokens see which, and not what is padding.
        is_padding_mask = isinstance(mask, torch.Tensor) and mask.shape == ids.shape
        padding = torch.eq(mask, 0).cpu().numpy() if is_padding_mask else np.zeros(tokens.shape, bool)
        documents, gaps = self._finder.find(tokens, padding)
        problems: list[str] = []
        if gaps:
            problems.append(self._finder.describe(tokens, gaps[0]))
        if len(gaps) > 1:
            problems.append(f"and {len(gaps) - 1:,} more such parts")
        if self._rows.has_pairs and isinstance(kwargs.get("labels"), torch.Tensor):
            problems.append("labels of preference pairs reach the model, whose loss trains rejected answers too")
        verdict = judge_labels(kwargs, caller, documents, shape=(len(ids), ids.shape[1]), complete=not gaps)
        if verdict.problem:
            problems.append(verdict.problem)
        positions = kwargs.get("position_ids", kwargs.get("input_pos"))
        # Positions of another shape, as of models with several position axes, are not judged.
        if isinstance(positions, torch.Tensor) and positions.shape == ids.shape:
            places = positions.cpu().numpy()
            wrong = [
                document
                for document in documents
                if not np.array_equal(places[document.place], np.arange(document.end - document.begin))
            ]
            if wrong:
                problems.append(f"position_ids do not start at 0 in {len(wrong)} of {len(documents)} documents")
        return Findings(documents, problems, verdict.unjudged)


def guard(trainer_or_model: Any, data: str | Path, split: str = "train") -> PackedGuard:
    """Check the first batch that a model gets in training, in any trainer or loop, and stop what is wrong.

    Args:
        trainer_or_model: a trainer of transformers; of others the model, as soon as it is made, also within PEFT, DDP,
            FSDP, torch.compile or a LightningModule.
        data: folder or URL that `packtrain run` wrote.
        split: the one that trains.

    Raises:
        ConfigError: `trainer_or_model` is neither of the two.
        InputError, IntegrityError: see `PackedRows`. In training LeakError, see `PackedGuard`.
    """
    packed_guard = PackedGuard(data, split)
    if hasattr(trainer_or_model, "add_callback"):
        trainer_or_model.add_callback(packed_guard)
        # transformers calls it for callbacks that a trainer is made with, so not for this one.
        packed_guard.on_init_end(args=None, state=None, control=None, model=trainer_or_model.model)
        return packed_guard
    if not isinstance(trainer_or_model, torch.nn.Module):
        raise ConfigError(
            f"guard: {type(trainer_or_model).__name__} is neither a trainer of transformers nor a model; give the "
            "model that it trains"
        )
    packed_guard.watch(trainer_or_model)
    packed_guard.on_init_end(args=None, state=None, control=None, model=trainer_or_model)
    return packed_guard


def _model_in(model: Any) -> Any:
    """The model of transformers in a module that holds one, as a LightningModule does; else the module itself."""
    if hasattr(wrappers_of(model)[-1], "get_input_embeddings"):
        return model
    return next((part for part in model.modules() if hasattr(part, "get_input_embeddings")), model)


def _ids_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """(B, T) the tokens with which a model is called; None if there are none."""
    # Models of transformers take `input_ids`, models of torchtune `tokens`, and others get them as the first argument.
    ids = kwargs.get("input_ids", kwargs.get("tokens", args[0] if args else None))
    if not isinstance(ids, torch.Tensor) or ids.is_floating_point():  # the latter are embeddings
        return None
    return ids.reshape(-1, ids.shape[-1])  # also of (T,) tokens without a dimension of rows


def _describe(problems: list[str], caller: Caller, batch: dict[str, Any]) -> str:
    """What is wrong with a batch, and what to change in the trainer; without problems, that another rank has some."""
    if not problems:
        return "another rank got a batch that is not what was packed; its message says what to do"
    problem = "; ".join(problems)
    advice = advise(caller, batch, problem)
    text = f"what {caller.name} gives the model is not what was packed, and nothing was trained: {problem}"
    return f"{text}. To do: {advice}" if advice else text


def _say(text: str) -> None:
    """Print a line, on the first rank only."""
    if detect_rank().rank == 0:
        print(f"packtrain: {text}", flush=True)
