"""The loader as transformers.Trainer takes it: whole, unprepared, and counted by optimizer steps.

Trainer draws all micro-batches of a step before it computes the first. So a checkpoint must hold where the loader stood
when the last *finished* step was drawn, not where it stands: `Feed.drew` and `Feed.finish`.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from ...schemas.errors import ConfigError
from ...schemas.units import plural
from ..loader import PackedLoader


class Feed(IterableDataset[dict[str, Any]]):  # type: ignore[misc]  # torch is not followed
    """The remaining batches of a loader. `len()` counts the whole training, also after resuming."""

    def __init__(self, loader: PackedLoader) -> None:
        self.loader = loader
        self.batches = len(loader)
        self.beginning = self.finished = self._drawn = loader.state_dict()
        """The loader's state at the start, after the last finished step, and after the step drawn last."""
        self.over = False
        """All steps were made before the checkpoint that training resumes from, even if rows are left."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(()) if self.over else iter(self.loader)

    def __len__(self) -> int:
        return self.batches

    @property
    def steps(self) -> int:
        """Optimizer steps that the data gives."""
        return self.batches // self.loader.accumulate

    @property
    def epoch(self) -> float:
        """How often the finished steps have read the data; of a mixture, the share that they have read."""
        return float(self.finished["rows"]) / self.loader.epoch_rows

    def steps_wanted(self, max_steps: int) -> int:
        """Optimizer steps to make: all where `max_steps` is not positive.

        Raises:
            ConfigError: the data gives fewer.
        """
        if max_steps > self.steps:
            epochs = -(-max_steps // max(1, self.steps))
            raise ConfigError(
                f"max_steps={max_steps:,}, but the data gives {plural(self.steps, 'step')} of "
                f"{plural(self.loader.rows_per_step, 'row')}; take fewer steps, or read the data about {epochs:,} "
                "times as often (epochs)"
            )
        return max_steps if max_steps > 0 else self.steps

    def go_to(self, state: dict[str, Any], *, over: bool = False) -> None:
        """Continue from a loader's state. Raises ConfigError if it is of other data."""
        self.over = over
        self.loader.load_state_dict(state)
        self.finished = self._drawn = self.loader.state_dict()

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """If all steps were made, hide transformers' warning that there is no sample."""
        logger = logging.getLogger("transformers.trainer")

        def wanted(record: logging.LogRecord) -> bool:
            return not (self.over and "a single sample" in record.getMessage())

        logger.addFilter(wanted)
        try:
            yield
        finally:
            logger.removeFilter(wanted)

    @property
    def position(self) -> int:
        """Rows drawn so far, over all ranks: where the next step begins in the loader's order."""
        return int(self._drawn["rows"])

    def drew(self) -> None:
        """Note that all micro-batches of a step were taken from the loader."""
        self._drawn = self.loader.state_dict()

    def finish(self) -> None:
        """Note that the step drawn last is finished."""
        self.finished = self._drawn

    def dataloader(self) -> DataLoader:
        """A plain DataLoader in this process: the loader makes its batches in threads of its own.

        It has a generator, or its iterator would draw from the global one just after a checkpoint's was restored.
        """
        return DataLoader(self, batch_size=None, num_workers=0, generator=torch.Generator())
