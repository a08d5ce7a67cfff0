"""Checks that a loader loses and repeats no row, wherever it stopped and on however many ranks it goes on."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

from packtrain.schemas.rows import IGNORE_INDEX

STATE_BYTES = 1024
"""Upper bound on the size of a state as JSON."""

Pieces = Counter[tuple[bytes, bytes]]
"""Number of documents by content: input ids and labels."""


class Resumable(Protocol):
    """Common interface of PackedLoader and PackedStream."""

    def __iter__(self) -> Iterator[dict[str, Any]]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class Shape:
    """The number of ranks and rows per step with which a dataset is read."""

    world_size: int
    rows_per_step: int


Make = Callable[[int, Shape], Resumable]
"""`make(rank, shape)` makes a loader at its beginning, with the same data, seed, epochs and order for every shape."""


def check_resumption(make: Make, shapes: Sequence[Shape], *, every: int = 1) -> None:
    """Stop at every step of every shape, continue in every shape, and check that exactly the remaining rows are
    delivered.

    The documents in the batches of all ranks together are compared with those that one rank with one row per step
    delivers: in every shape, and wherever it resumed, every step must hold exactly the next rows of the order. Rows
    that fill up a last step must be padding or the first rows. States must be small, and equal on all ranks.

    Args:
        every: stop only after each this many steps; the time grows with the square of the number of stops.
    """
    rows = [pieces for pieces, _ in _deliver(make, Shape(1, 1), None)]
    assert rows
    for shape in shapes:
        stops = [state for number, (_, state) in enumerate(_deliver(make, shape, None)) if number % every == 0]
        assert stops
        _compare(make, shape, None, rows)
        for state in stops:
            for other in shapes:
                _compare(make, other, state, rows)


def _compare(make: Make, shape: Shape, state: dict[str, Any] | None, rows: list[Pieces]) -> None:
    """Compare the rows that a loader delivers, from a state to the end, with the expected rows."""
    position = state["rows"] if state else 0
    where = f"{shape}, resumed with {state}"
    for pieces, after in _deliver(make, shape, state):
        end = after["rows"]
        expected = sum(rows[position:end], Counter())
        assert end == min(position + shape.rows_per_step, len(rows)), where
        extra = pieces - expected
        assert not expected - pieces, f"{where}: documents of the step at row {position} are missing"
        if end - position == shape.rows_per_step:
            assert not extra, f"{where}: the step at row {position} holds documents of other rows"
        elif not all(_untrained(labels) for _, labels in extra):
            first = Counter({piece: count * shape.rows_per_step for piece, count in sum(rows, Counter()).items()})
            assert not extra - first, f"{where}: the last step is filled with neither padding nor the first rows"
        position = end
    assert len(rows) - position < shape.rows_per_step, f"{where}: it ended after row {position} of {len(rows)}"


def _deliver(make: Make, shape: Shape, state: dict[str, Any] | None) -> Iterator[tuple[Pieces, dict[str, Any]]]:
    """Yield each step's documents over all ranks, and the state after it. All ranks must end together."""
    loaders = [make(rank, shape) for rank in range(shape.world_size)]
    if state is not None:
        for loader in loaders:
            loader.load_state_dict(json.loads(json.dumps(state)))
    for batches in zip(*loaders, strict=True):
        states = [loader.state_dict() for loader in loaders]
        assert all(one == states[0] for one in states), f"{shape}: the ranks have different states: {states}"
        assert len(json.dumps(states[0])) < STATE_BYTES
        yield sum(map(pieces_of, batches), Counter()), states[0]


def pieces_of(batch: dict[str, Any]) -> Pieces:
    """Return the documents of a flattened batch, without the empty ones that fixed shapes add."""
    ids, labels = batch["input_ids"][0].numpy(), batch["labels"][0].numpy()
    bounds = batch["cu_seq_lens_q"].tolist()
    return Counter(
        (ids[begin:end].tobytes(), labels[begin:end].tobytes()) for begin, end in pairwise(bounds) if end > begin
    )


def _untrained(labels: bytes) -> bool:
    return labels == IGNORE_INDEX.to_bytes(8, "little", signed=True) * (len(labels) // 8)
