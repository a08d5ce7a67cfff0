"""The reference of a preference training: log-probabilities of all rows, of training and held out, by the weights that
training starts from. They are computed before the first step, and read from then on.
"""

import time
from pathlib import Path
from typing import Any

import torch

from ...schemas.units import plural
from ..attention.packed_attention import Applied
from ..loader import PackedLoader
from ..preference.reference import Reference
from ..preference.reference_pass import LogpsOf, reference_key, stored_reference
from . import Say

REFERENCE = "reference.arrow"
"""The file in `out`, unless the configuration names another one."""


SECONDS = 10.0
"""Time between two lines of progress."""


class _Progress:
    """Says how far the reference of some rows is, now and then: a pass over all rows may take hours."""

    def __init__(self, name: str, say: Say) -> None:
        self._name = name
        self._say = say
        self._last = time.monotonic()

    def __call__(self, done: int, rows: int) -> None:
        now = time.monotonic()
        if now - self._last < SECONDS:
            return
        self._last = now
        self._say(f"the reference of {self._name} rows: {done:,} of {plural(rows, 'row')}")


class PairReference:
    """The log-probabilities that the pairs of a training are compared with.

    Args:
        file: of the training rows. That of held-out rows is beside it.
        weights: hash of the weights that training starts from.
        held_out: gives the held-out rows, the first `held_out_rows` of which are evaluated; None if none are.
    """

    def __init__(self, file: Path, weights: str, held_out: PackedLoader | None, held_out_rows: int) -> None:
        self.file = file
        self.held_out: Reference | None = None
        """Of held-out rows, once it is there."""
        self._weights = weights
        self._held_out_loader = held_out
        self._held_out_rows = held_out_rows

    def prepare(
        self,
        loader: PackedLoader,
        model: Any,
        attention: Applied,
        logps_of: LogpsOf | None,
        device: torch.device,
        say: Say,
    ) -> None:
        """Read or compute the log-probabilities, and give those of the training rows to the loader. Every rank calls
        it, within the autocast in which the model computes.

        Args:
            model: in eval mode.
            attention: what computes its attention on the device.
            logps_of: the model's forward pass, as it computes log-probabilities for the loss; None if the model's
                weights are trained already, and so are no reference.

        Raises:
            ConfigError, PacktrainError, StoreError: see `stored_reference`.
        """

        def read_or_compute(name: str, file: Path, rows: PackedLoader, count: int | None) -> Reference:
            state = "is read from" if file.exists() else "is computed, once, and kept in"
            say(f"the reference of {name} rows {state} {file}")
            key = reference_key(rows, model, attention, self._weights)
            return stored_reference(file, key, rows, logps_of, device, rows=count, progress=_Progress(name, say))

        loader.reference = read_or_compute("training", self.file, loader, None)
        if self._held_out_loader is not None:
            file = self.file.with_name(f"{self.file.stem}.holdout{self.file.suffix}")
            self.held_out = read_or_compute("held-out", file, self._held_out_loader, self._held_out_rows)
