"""Arrays are reused, but never while something still refers to them."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from packtrain.training import PackedLoader  # noqa: E402
from packtrain.training.loader.buffers import Buffers  # noqa: E402


def address(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())


def test_what_was_let_go_comes_again() -> None:
    buffers = Buffers()
    first = torch.from_numpy(buffers.take(1000))
    where = address(first)
    assert address(torch.from_numpy(buffers.take(1000))) != where
    del first
    assert address(torch.from_numpy(buffers.take(900))) == where


@pytest.mark.parametrize(
    "view",
    [
        lambda tensor: tensor,
        lambda tensor: tensor[0, 10:20],
        lambda tensor: tensor.numpy(),
        lambda tensor: tensor.numpy()[0, 10:20],
        lambda tensor: tensor.detach().view(-1),
        lambda tensor: memoryview(tensor.numpy()),
    ],
)
def test_any_view_keeps_it(view: object) -> None:
    buffers = Buffers()
    tensor = torch.from_numpy(buffers.take(1000))
    where = address(tensor)
    kept = view(tensor)  # type: ignore[operator]
    del tensor
    assert address(torch.from_numpy(buffers.take(1000))) != where
    del kept
    assert where in {address(one) for one in [torch.from_numpy(buffers.take(1000)) for _ in range(2)]}


@given(st.lists(st.tuples(st.integers(1, 3000), st.booleans()), max_size=60))
def test_kept_ones_never_change(requests: list[tuple[int, bool]]) -> None:
    buffers = Buffers()
    kept = []
    for number, (size, keep) in enumerate(requests):
        array = buffers.take(size)
        assert array.shape == (1, size)
        array[:] = number
        tensor = torch.from_numpy(array)
        if keep:
            kept.append((number, size, tensor))
    for number, size, tensor in kept:
        assert tensor.tolist() == [[number] * size]


def test_threads() -> None:
    buffers = Buffers()
    wrong: list[Any] = []

    def work(mark: int) -> None:
        chance = np.random.default_rng(mark)
        held = []
        for _ in range(2000):
            array = buffers.take(int(chance.integers(1, 200)))
            array[:] = mark
            held.append(torch.from_numpy(array))
            if len(held) > 5:
                held.pop(int(chance.integers(len(held))))
            wrong.extend(tensor for tensor in held if not (tensor == mark).all())

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_loaders_batches_may_be_kept(folder: Path) -> None:
    kept = [batch["input_ids"] for batch in PackedLoader(folder, rows_per_step=2, num_workers=2)]
    again = [batch["input_ids"].clone() for batch in PackedLoader(folder, rows_per_step=2, num_workers=0)]
    assert len(kept) > 5
    assert all(torch.equal(one, other) for one, other in zip(kept, again, strict=True))
