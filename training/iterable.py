"""The loader inside torch's own loaders: for torchdata's StatefulDataLoader, and for accelerate, which may use it."""

import sys
from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from ..schemas.errors import ConfigError
from .loader import PackedLoader
from .state import MOST


class PackedIterable(IterableDataset[dict[str, Any]]):  # type: ignore[misc]  # torch is not followed
    """A PackedLoader's batches as an iterable dataset that keeps its own place in every worker process.

    Worker w of n makes steps w, w + n, w + 2n, …, and torch's loaders ask their workers in turn: the steps come in
    the loader's order. Use it with `batch_size=None`. Its state is a worker's own, as torchdata keeps them, so resume
    with as many workers; a PackedLoader by itself does not ask for that, and makes batches ahead without processes.
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
        self._handed = 0  # whoever asks again gets everything again

    def set_epoch(self, epoch: int) -> None:
        """Nothing: epochs run on within the loader. accelerate calls this on every rank before it takes a batch.

        Raises:
            ConfigError: accelerate has prepared the loader on several ranks. It would hand out the first rank's batches
                (`dispatch_batches`), which waits for ever where their sizes differ, or deal out each rank's own again.
        """
        caller = str(sys._getframe(1).f_globals.get("__name__"))
        if self.loader.place.world_size > 1 and caller.startswith("accelerate."):
            raise ConfigError(
                "accelerate has prepared a loader of packtrain's, which has divided the rows among "
                f"{self.loader.place.world_size:,} ranks already: rows would be lost, or ranks wait for ever. Leave it "
                "out of accelerator.prepare (with dispatch_batches and without), iterate over the PackedLoader, and "
                "accelerator.register_for_checkpointing(loader)"
            )

    def state_dict(self) -> dict[str, Any]:
        """Where the loader began, and how many batches this worker has handed out."""
        return {"start": self._start, "handed": self._handed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on behind the batches that were handed out.

        Raises:
            ConfigError: see `PackedLoader.load_state_dict`.
        """
        given: Any = state if isinstance(state, dict) else {}
        start, handed = given.get("start"), given.get("handed")
        if type(handed) is not int or not 0 <= handed <= MOST:
            raise ConfigError(
                "this is not the state of a PackedIterable: `handed` is no count; give what its state_dict() returned"
            )
        self.loader.load_state_dict(start)
        self._start, self._handed = start, handed
