"""Checks in every training step, at no cost: the batch is well formed, and every layer used packed attention."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ...schemas.errors import BatchError, LeakError
from ..attention import BLOCK_NAME, NAME
from ..attention.apply import unwrap
from ..attention.batches import check_batch
from ..attention.calls import count_calls, expected_calls, is_compiled, layers_of
from .limits import document_limit, row_limit


class StepGuard:
    """Guards training steps: `with guard.step(batch): loss = forward(batch)`.

    Batches are checked as they come from the loader, on the CPU. Of tensors on a device only shapes are checked,
    because reading them waits for the device. Compiled code runs without Python, so its calls cannot be counted; only
    the batch is checked then, and the rest relies on the probe.

    Args:
        model: the model that the probe has found isolated.
        calls: number of calls of packed attention in a forward pass, from `ProbeReport.calls`; None to learn it from
        the first step.
    """

    def __init__(self, model: Any, calls: int | None = None) -> None:
        bare = unwrap(model)
        self._model, self._calls = model, calls
        self._layers = layers_of(bare)
        self._config = bare.config
        self._name = str(getattr(bare.config, "_attn_implementation", None))
        self._expected = expected_calls(bare)
        self._row, self._document = row_limit(model), document_limit(model)
        self._counts: bool | None = None
        self.steps = 0
        """Number of steps that passed."""

    @contextmanager
    def step(self, batch: Mapping[str, Any]) -> Iterator[None]:
        """Return a context for the forward pass only, because checkpointing runs attention again in the backward pass.

        Raises:
            LeakError: the batch is malformed, the model's attention has changed, or some layer did not use packed
            attention.
        """
        if self._counts is None:
            self._counts = self._name in (NAME, BLOCK_NAME) and not is_compiled(self._model)
        self._check(batch)
        if not self._counts:
            yield
            self.steps += 1
            return
        with count_calls(self._model, self._layers) as seen:
            yield
        self._compare(seen.calls)
        self.steps += 1

    def _check(self, batch: Mapping[str, Any]) -> None:
        try:
            check_batch(batch)
        except BatchError as error:
            raise LeakError(f"step {self.steps + 1:,} is not taken: {error}") from error
        now = str(getattr(self._config, "_attn_implementation", None))
        if now != self._name:
            raise LeakError(
                f"step {self.steps + 1:,} is not taken: attention was {self._name} when training began, and is {now} "
                "now; something set it in between"
            )
        ids = batch.get("input_ids", batch.get("inputs_embeds"))
        if self._row is not None and ids is not None and ids.shape[1] > self._row.tokens:
            raise LeakError(
                f"step {self.steps + 1:,} is not taken: {ids.shape[1]:,} tokens in a row, but {self._row.reason}. Take "
                "fewer rows a step, or a shorter max_length"
            )
        if self._document is not None and (longest := _longest(batch)) > self._document.tokens:
            raise LeakError(
                f"step {self.steps + 1:,} is not taken: it has a document of {longest:,} tokens, but "
                f"{self._document.reason}. Pack with truncate.max_length: {self._document.tokens}, or take another "
                "model"
            )

    def _compare(self, calls: int) -> None:
        if self._calls is None and calls > 0 and (self._expected == 0 or calls % self._expected == 0):
            self._calls = calls
        if calls != self._calls:
            expected = self._expected if self._calls is None else self._calls
            raise LeakError(
                f"step {self.steps + 1:,}: {self._name} ran {calls} times in the forward pass, and should have run "
                f"{expected} times: some layer used another attention, which ignores document bounds. Stop here, and "
                "run packtrain probe"
            )


def _longest(batch: Mapping[str, Any]) -> int:
    """Return the tokens of the longest document; for a batch on a device the upper bound that kernels get, to avoid a
    synchronisation.
    """
    bounds = batch["cu_seq_lens_q"]
    return int(bounds.diff().max()) if bounds.device.type == "cpu" else int(batch["max_length_q"])
