"""The loader as an iterable dataset, for torchdata's StatefulDataLoader and for accelerate."""

import sys
from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from ...schemas.errors import ConfigError
from ..order.state import MOST
from .loader import PackedLoader


class PackedIterable(IterableDataset[dict[str, Any]]):  # type: ignore[misc]  # torch is not followed
    """A PackedLoader's batches as an iterable dataset with its own position in every worker process.

    Worker w of n makes steps w, w + n, w + 2n, …, and torch's loaders take from their workers in turn, so steps come in
    the loader's order. Use `batch_size=None`. torchdata keeps one state per worker, so resume with the same number of
    workers; a PackedLoader alone does not need that, and makes batches ahead without processes.
    """

    def __init__(self, loader: PackedLoader) -> None:
        self.loader = loader
        self._start = loader.state_dict()
        self._handed = 0

    def __len__(self) -> int:
        return self.loader.steps.left(self._start["rows"])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        self.loader.load_state_dict(self._start)
        first, count = self._start["rows"], len(self)
        for number in range(worker + self._handed * workers, count, workers):
            batch = self.loader.batch(first + number * self.loader.rows_per_step)
            self._handed += 1
            yield batch
        self._handed = 0  # a second iteration starts again

    def set_epoch(self, epoch: int) -> None:
        """Only check that accelerate has not prepared the loader; epochs continue within the loader. accelerate calls
        this on every rank before it takes a batch.

        Raises:
            ConfigError: accelerate has prepared the loader on several ranks. It would either send out the first rank's
                batches (`dispatch_batches`), which hangs if their sizes differ, or divide each rank's own batches
                again.
        """
        caller = str(sys._getframe(1).f_globals.get("__name__"))
        if self.loader.place.world_size > 1 and caller.startswith("accelerate."):
            raise ConfigError(
                "accelerate has prepared a packtrain loader, which has divided the rows among "
                f"{self.loader.place.world_size:,} ranks already: rows would be lost, or ranks would hang. Leave it "
                "out of accelerator.prepare (with dispatch_batches and without), iterate over the PackedLoader, and "
                "accelerator.register_for_checkpointing(loader)"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the state where the loader began, and how many batches this worker has returned."""
        return {"start": self._start, "handed": self._handed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the batches that were returned.

        Raises:
            ConfigError: see `PackedLoader.load_state_dict`.
        """
        given: Any = state if isinstance(state, dict) else {}
        start, handed = given.get("start"), given.get("handed")
        if type(handed) is not int or not 0 <= handed <= MOST:
            raise ConfigError(
                "this is not the state of a PackedIterable: `handed` is not a count; "
                "give what its state_dict() returned"
            )
        self.loader.load_state_dict(start)
        self._start, self._handed = start, handed
