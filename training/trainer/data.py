"""The loader as transformers.Trainer takes it: whole, unprepared, and counted by optimizer steps.

Trainer draws all micro-batches of a step before it computes the first. So a checkpoint must hold where the loader stood
when the last *finished* step was drawn, not where it stands: `Feed.drew` and `Feed.finished`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from ...schemas.errors import ConfigError, InputError
from ..loader.loader import PackedLoader
from ..order.concat import ConcatRows
from ..probe.limits import Limit, document_limit
from .models import learned_positions


class Feed(IterableDataset[dict[str, Any]]):  # type: ignore[misc]  # torch is not followed
    """The remaining batches of a loader. `len()` counts the whole training, also after resuming."""

    def __init__(self, loader: PackedLoader) -> None:
        self.loader = loader
        self.beginning = loader.state_dict()
        self.batches = len(loader)
        self._drawn = self._finished = self.beginning
        self.over = False
        """All steps were made before the checkpoint that training resumes from, even if rows are left."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(()) if self.over else iter(self.loader)

    def __len__(self) -> int:
        return self.batches

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole training."""
        return self.batches // self.loader.accumulate

    @property
    def finished(self) -> dict[str, Any]:
        """The loader's state after the last finished optimizer step."""
        return self._finished

    @property
    def epoch(self) -> float:
        """How often the finished steps have read the data; of a mixture, the share that they have read."""
        stream = self.loader.schedule.global_order
        period = len(self.loader.corpus) if stream.mixture is None else stream.mixture.total
        return float(self._finished["rows"]) / period

    def go_to(self, state: dict[str, Any], *, over: bool = False) -> None:
        """Continue from a loader's state. Raises ConfigError if it is of other data."""
        self.over = over
        self.loader.load_state_dict(state)
        self._drawn = self._finished = self.loader.state_dict()

    def drew(self) -> None:
        """Note that all micro-batches of a step were taken from the loader."""
        self._drawn = self.loader.state_dict()

    def finish(self) -> None:
        """Note that the step taken last is finished."""
        self._finished = self._drawn

    def dataloader(self) -> DataLoader:
        """A plain DataLoader in this process: the loader makes its batches in threads of its own.

        It has a generator, or its iterator would draw from the global one just after a checkpoint's was restored.
        """
        return DataLoader(self, batch_size=None, num_workers=0, generator=torch.Generator())


def position_limit(model: Any) -> Limit | None:
    """The longest document that a model takes, and what happens to longer ones; None where there is no limit."""
    limits = []
    if (stretch := document_limit(model)) is not None:
        reason = f"the model's {stretch.reason}: a document's outputs would depend on the others in its batch"
        limits.append(Limit(stretch.tokens, reason))
    if (learned := learned_positions(model)) is not None:
        limits.append(Limit(learned, f"the model has embeddings for {learned:,} positions"))
    return min(limits, key=lambda limit: limit.tokens, default=None)


def refuse_long_documents(limit: Limit | None, corpora: Mapping[str, ConcatRows]) -> None:
    """Refuse documents longer than `position_limit`.

    Args:
        corpora: what the data is called in the configuration, and its rows.

    Raises:
        InputError: says how long the longest document is, and how long it may be.
    """
    for name, corpus in corpora.items():
        if limit is not None and (longest := corpus.longest(beyond=limit.tokens)) > limit.tokens:
            raise InputError(
                f"{name} has a document of {longest:,} tokens, but {limit.reason}. Pack with truncate.max_length: "
                f"{limit.tokens}, or take another model"
            )


def steps_wanted(max_steps: int, feed: Feed) -> int:
    """Optimizer steps to make.

    Raises:
        ConfigError: the data holds fewer.
    """
    if max_steps <= 0:
        return feed.steps
    if max_steps > feed.steps:
        epochs = -(-max_steps // max(1, feed.steps))
        raise ConfigError(
            f"max_steps={max_steps:,}, but the data gives {feed.steps:,} steps of {feed.loader.rows_per_step:,} rows; "
            f"take fewer steps, or read the data about {epochs:,} times as often (epochs)"
        )
    return max_steps
