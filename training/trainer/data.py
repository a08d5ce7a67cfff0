"""The loader as transformers.Trainer takes it: whole, unprepared, and counted by optimizer steps.

Trainer draws all micro-batches of a step before it computes the first. So what a checkpoint must hold is not where
the loader stands, but where it stood when the last *finished* step was drawn: `Feed.drew` and `Feed.finished`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, IterableDataset

from ...schemas.errors import ConfigError, InputError
from ..corpus import Corpus
from ..probe.limits import document_limit
from ..schedule import Schedule
from .models import learned_positions


class Loader(Protocol):
    """What a PackedLoader and its baselines have in common."""

    schedule: Schedule
    corpus: Corpus
    rows_per_step: int
    accumulate: int
    seq_idx: bool

    @property
    def total_rows(self) -> int: ...

    def __iter__(self) -> Iterator[dict[str, Any]]: ...

    def __len__(self) -> int: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def batch(self, position: int) -> dict[str, Any]: ...


class Feed(IterableDataset[dict[str, Any]]):  # type: ignore[misc]  # torch is not followed
    """A loader's batches from where it stands. Its length is that of the whole training, also after resuming."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.beginning = loader.state_dict()
        self.batches = len(loader)
        self._drawn = self._finished = self.beginning
        self.over = False
        """Nothing is left to do, even if rows are left: the checkpoint that training goes on from was the last."""

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
        """How often the data has been read by the steps that are finished; of a mixture, which share of it."""
        stream = self.loader.schedule.stream
        period = len(self.loader.corpus) if stream.mixture is None else stream.mixture.total
        return float(self._finished["rows"]) / period

    def go_to(self, state: dict[str, Any], *, over: bool = False) -> None:
        """Stand where a checkpoint, or the beginning, says. Raises ConfigError where that is of other data."""
        self.over = over
        self.loader.load_state_dict(state)
        self._drawn = self._finished = self.loader.state_dict()

    def drew(self) -> None:
        """All micro-batches of a step were drawn."""
        self._drawn = self.loader.state_dict()

    def finish(self) -> None:
        """The step that was drawn last is finished."""
        self._finished = self._drawn

    def dataloader(self) -> DataLoader:
        """A plain DataLoader in this process: the loader makes its batches in threads of its own.

        It has a generator, or its iterator would draw from the global one just after a checkpoint's was restored.
        """
        return DataLoader(self, batch_size=None, num_workers=0, generator=torch.Generator())


def refuse_long_documents(model: Any, corpora: Mapping[str, Corpus]) -> None:
    """Refuse documents that the model has no positions for, or that would change others of their batch.

    Args:
        corpora: what the data is called in the configuration, and its rows.

    Raises:
        InputError: says how long the longest document is, and how long it may be.
    """
    limit, positions = document_limit(model), learned_positions(model)
    most = min((one for one in (None if limit is None else limit.tokens, positions) if one is not None), default=None)
    if most is None:
        return
    for name, corpus in corpora.items():
        longest = corpus.longest(beyond=most)
        if positions is not None and longest > positions:
            raise InputError(
                f"{name} has a document of {longest:,} tokens, but the model has embeddings for {positions:,} "
                "positions; pack with a smaller truncate.max_length, or take another model"
            )
        if limit is not None and longest > limit.tokens:
            raise InputError(
                f"{name} has a document of {longest:,} tokens, but the model's {limit.reason}: documents would be "
                "computed otherwise than alone, and otherwise in another batch. Pack with truncate.max_length: "
                f"{limit.tokens}, or take another model"
            )


def steps_wanted(max_steps: int, feed: Feed) -> int:
    """Optimizer steps to make.

    Raises:
        ConfigError: more are asked for than the data holds.
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
