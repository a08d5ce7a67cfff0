"""Where documents begin and end, by eye."""

import pytest

pytest.importorskip("torch")

import torch
from packtrain.schemas.errors import AttentionError
from packtrain.training.attention.bounds import Bounds, find_bounds, in_chunks


def positions(*rows: list[int]) -> dict[str, torch.Tensor]:
    return {"position_ids": torch.tensor(rows)}


def test_the_batch_says_them() -> None:
    cu = torch.tensor([0, 3, 3, 5], dtype=torch.int32)
    found = find_bounds({"cu_seq_lens_q": cu, "max_length_q": 3, **positions([0, 1, 2, 3, 4])}, 1, 5, "Llama")
    assert found.cu is cu
    assert found.longest == 3
    assert find_bounds({"cu_seq_lens_q": cu}, 1, 5, "Llama").longest == 3


@pytest.mark.parametrize(
    ("rows", "expected", "longest"),
    [
        ([[0, 1, 2, 0, 1]], [0, 3, 5], 3),
        ([[0, 0, 0]], [0, 1, 2, 3], 1),
        ([[5, 6, 7, 0, 1, 2, 3]], [0, 3, 7], 4),  # a row that begins in mid-document
        ([[0, 1, 9, 10]], [0, 2, 4], 2),
        ([[0, 1], [0, 1], [2, 3]], [0, 2, 4, 6], 2),
        ([[0]], [0, 1], 1),
    ],
)
def test_positions_say_them(rows: list[list[int]], expected: list[int], longest: int) -> None:
    found = find_bounds(positions(*rows), len(rows), len(rows[0]), "Llama")
    assert found.cu.tolist() == expected
    assert found.cu.dtype == torch.int32
    assert found.longest == longest


def test_positions_that_change_in_place_are_read_again() -> None:
    given = positions([0, 1, 2, 3])
    assert find_bounds(given, 1, 4, "Llama").cu.tolist() == [0, 4]
    given["position_ids"].copy_(torch.tensor([[0, 1, 0, 1]]))
    assert find_bounds(given, 1, 4, "Llama").cu.tolist() == [0, 2, 4]


def test_positions_of_several_kinds() -> None:
    text, image = [0, 1, 0], [0, 5, 5]
    assert find_bounds({"position_ids": torch.tensor([[text], [image], [image]])}, 1, 3, "Qwen").cu.tolist() == [
        0,
        2,
        3,
    ]


def test_nothing_arrived() -> None:
    with pytest.raises(AttentionError, match=r"Llama: attention got neither cu_seq.*unpacked=True"):
        find_bounds({}, 1, 5, "Llama")
    cu = torch.tensor([0, 5], dtype=torch.int32)
    with pytest.raises(AttentionError, match="flattened to one"):
        find_bounds({"cu_seq_lens_q": cu}, 2, 5, "Llama")
    with pytest.raises(AttentionError, match="same documents"):
        find_bounds({"cu_seq_lens_q": cu, "cu_seq_lens_k": torch.tensor([0, 2, 5], dtype=torch.int32)}, 1, 5, "Llama")
    with pytest.raises(AttentionError, match="use_cache=False"):
        find_bounds(positions([0, 1]), 1, 5, "Llama")


def test_chunks() -> None:
    cu = torch.tensor([0, 5, 5, 7, 8], dtype=torch.int32)
    assert in_chunks(Bounds(cu, 5), 8, 5).cu is cu
    cut = in_chunks(Bounds(cu, 5), 8, 2)
    # Of as many entries as there may be at most; what is left holds nothing.
    assert cut.cu.tolist() == [0, 2, 4, 5, 7, 8, 8, 8, 8]
    assert cut.longest == 2
    assert cut.cu.dtype == torch.int32
