"""The loader inside torch's own loaders: for torchdata's StatefulDataLoader, and for accelerate, which may use it."""

from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from .loader import PackedLoader


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

    def state_dict(self) -> dict[str, Any]:
        """Where the loader began, and how many batches this worker has handed out."""
        return {"start": self._start, "handed": self._handed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on behind the batches that were handed out.

        Raises:
            ConfigError: see `PackedLoader.load_state_dict`.
        """
        self.loader.load_state_dict(state["start"])
        self._start, self._handed = state["start"], state["handed"]
