"""Packed attention against a dense float64 reference with every pattern written out: heads, groups, windows, soft
caps, sinks, odd lengths, empty documents; the gradient that must be zero to the bit; where bounds are found; and
what is refused."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from packtrain.schemas.errors import AttentionError
from packtrain.training.attention.varlen import find_bounds, no_mask, packed_varlen

from tests.support.examples import examples

torch.set_num_threads(1)


class Layer(torch.nn.Module):  # type: ignore[misc]
    """What a layer of transformers tells its attention function."""

    def __init__(self, kind: str = "full_attention", **config: Any) -> None:
        super().__init__()
        self.config = SimpleNamespace(layer_types=[kind], **config)
        self.layer_idx, self.is_causal = 0, True


def reference(
    query: Any, key: Any, value: Any, lengths: list[int], scale: float, *,
    window: int | None = None, softcap: float | None = None, sinks: Any = None,
) -> Any:  # fmt: skip
    """(1, H, T, E) → (1, T, H, V), in float64, all T² scores."""
    groups = query.shape[1] // key.shape[1]
    q, k, v = query.double(), key.double().repeat_interleave(groups, 1), value.double().repeat_interleave(groups, 1)
    document = torch.tensor([number for number, length in enumerate(lengths) for _ in range(length)])
    place = torch.tensor([place for length in lengths for place in range(length)])
    seen = (document[:, None] == document[None, :]) & (place[:, None] >= place[None, :])
    if window is not None:
        seen &= place[:, None] - place[None, :] < window
    scores = (q @ k.transpose(2, 3)) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    weights = scores.masked_fill(~seen, -math.inf).exp()
    below = weights.sum(-1, keepdim=True)
    if sinks is not None:
        below = below + sinks.double().exp().reshape(1, -1, 1, 1)
    return ((weights / below) @ v).transpose(1, 2)


def inputs(lengths: list[int], heads: int, groups: int, size: int, carried: int, dtype: Any = torch.float64) -> Any:
    tokens = sum(lengths)
    generator = torch.Generator().manual_seed(tokens * 31 + heads)
    return tuple(
        torch.randn(1, number, tokens, width, generator=generator, dtype=torch.float64).to(dtype)
        for number, width in ((heads, size), (groups, size), (groups, carried))
    )


def bounds(lengths: list[int]) -> dict[str, Any]:
    cu = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    return {"cu_seq_lens_q": cu, "cu_seq_lens_k": cu, "max_length_q": max(lengths), "max_length_k": max(lengths)}


LENGTHS = st.lists(st.integers(0, 13), min_size=1, max_size=6).filter(any)
HEADS = st.sampled_from([(1, 1), (4, 4), (4, 2), (6, 1)])
SIZES = st.sampled_from([(8, 8), (5, 5), (12, 8), (8, 12)])


@examples(60)
@given(LENGTHS, HEADS, SIZES, st.sampled_from([None, 1, 3, 8, 100]), st.sampled_from([None, 0.3]))
def test_equals_the_dense_reference(
    lengths: list[int], heads: tuple[int, int], sizes: tuple[int, int], window: int | None, scale: float | None
) -> None:
    q, k, v = inputs(lengths, *heads, *sizes)
    expected = reference(q, k, v, lengths, sizes[0] ** -0.5 if scale is None else scale, window=window)
    found, weights = packed_varlen(Layer(), q, k, v, None, scaling=scale, sliding_window=window, **bounds(lengths))
    assert weights is None
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@examples(30)
@given(LENGTHS, HEADS, st.sampled_from([None, 4]), st.sampled_from([None, 0.5]), st.booleans())
def test_soft_caps_and_sinks(
    lengths: list[int], heads: tuple[int, int], window: int | None, softcap: float | None, sunk: bool
) -> None:
    q, k, v = inputs(lengths, *heads, 8, 8)
    sinks = torch.linspace(-1, 2, heads[0], dtype=torch.float64) if sunk else None
    options = {"softcap": softcap, "s_aux": sinks, **bounds(lengths)}
    found, _ = packed_varlen(Layer(), q, k, v, None, sliding_window=window, **options)
    expected = reference(q, k, v, lengths, 8**-0.5, window=window, softcap=softcap, sinks=sinks)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@examples(20)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=4), st.sampled_from([None, 3]), st.booleans())
def test_other_documents_have_no_gradient_to_the_bit(lengths: list[int], window: int | None, hard: bool) -> None:
    options: dict[str, Any] = {"softcap": 0.7, "s_aux": torch.ones(4)} if hard else {}
    q, k, v = (tensor.requires_grad_() for tensor in inputs(lengths, 4, 2, 8, 8, torch.float32))
    found, _ = packed_varlen(Layer(), q, k, v, None, sliding_window=window, **options, **bounds(lengths))
    found[:, lengths[0] :].pow(2).sum().backward()
    for tensor in (q, k, v):
        assert not tensor.grad[:, :, : lengths[0]].any()
    assert v.grad[:, :, lengths[0] :].any()


# Bounds


def positions(*rows: list[int]) -> dict[str, torch.Tensor]:
    return {"position_ids": torch.tensor(rows)}


@pytest.mark.parametrize(
    ("rows", "expected", "longest"),
    [
        ([[0, 1, 2, 0, 1]], [0, 3, 5], 3),
        ([[0, 0, 0]], [0, 1, 2, 3], 1),
        ([[5, 6, 7, 0, 1, 2, 3]], [0, 3, 7], 4),  # a row that begins in mid-document
        ([[0, 1], [0, 1], [2, 3]], [0, 2, 4, 6], 2),
        ([[0]], [0, 1], 1),
    ],
)
def test_positions_say_them(rows: list[list[int]], expected: list[int], longest: int) -> None:
    cu, most = find_bounds(positions(*rows), len(rows), len(rows[0]), "Llama")
    assert (cu.tolist(), cu.dtype, most) == (expected, torch.int32, longest)


def test_the_batch_says_them_and_positions_are_read_again_when_they_change() -> None:
    cu = torch.tensor([0, 3, 3, 5], dtype=torch.int32)
    found, longest = find_bounds({"cu_seq_lens_q": cu, "max_length_q": 3, **positions([0, 1, 2, 3, 4])}, 1, 5, "Llama")
    assert found is cu
    assert longest == find_bounds({"cu_seq_lens_q": cu}, 1, 5, "Llama")[1] == 3
    images = {"position_ids": torch.tensor([[[0, 1, 0]], [[0, 5, 5]], [[0, 5, 5]]])}
    assert find_bounds(images, 1, 3, "Qwen")[0].tolist() == [0, 2, 3]
    given = positions([0, 1, 2, 3])
    assert find_bounds(given, 1, 4, "Llama")[0].tolist() == [0, 4]
    given["position_ids"].copy_(torch.tensor([[0, 1, 0, 1]]))
    assert find_bounds(given, 1, 4, "Llama")[0].tolist() == [0, 2, 4]


def test_bounds_that_are_not_of_this_row() -> None:
    cu, other = torch.tensor([0, 5], dtype=torch.int32), torch.tensor([0, 2, 5], dtype=torch.int32)
    for arguments, rows, length in (
        ({}, 1, 5),
        (positions([0, 1]), 1, 5),
        ({"cu_seq_lens_q": cu}, 2, 5),
        ({"cu_seq_lens_q": cu}, 1, 6),
        ({"cu_seq_lens_q": cu, "max_length_q": 9}, 1, 5),
        ({"cu_seq_lens_q": cu, "cu_seq_lens_k": other}, 1, 5),
    ):
        with pytest.raises(AttentionError, match="Llama: "):
            find_bounds(arguments, rows, length, "Llama")
    q, k, v = inputs([5], 1, 1, 8, 8)
    with pytest.raises(AttentionError, match="from 1 to 5"):
        packed_varlen(Layer(), q, k, v, None, cu_seq_lens_q=torch.tensor([1, 5], dtype=torch.int32))


# Refusals


def call(module: Any = None, keys: int = 4, mask: Any = None, **kwargs: Any) -> Any:
    query, key = torch.ones(1, 2, 4, 8), torch.ones(1, 2, keys, 8)
    given = {"position_ids": torch.tensor([[0, 1, 0, 1]]), **kwargs}
    return packed_varlen(Layer() if module is None else module, query, key, key, mask, **given)


def test_it_raises_rather_than_attends_wrongly() -> None:
    assert call()[0].shape == (1, 4, 2, 8)
    looks_ahead = Layer()
    looks_ahead.is_causal = False
    for options, said in (
        ({"keys": 6}, "Layer of layer 0: 4 queries and 6 keys"),
        ({"dropout": 0.1}, r"attention dropout 0\.1"),
        ({"is_causal": False}, "looks ahead"),
        ({"module": looks_ahead}, "looks ahead"),
        ({"position_bias": torch.ones(1)}, "takes position_bias"),
        ({"indices": torch.zeros(1, 4, 2)}, "takes indices"),
        ({"mask": torch.ones(1, 1, 4, 4, dtype=torch.bool)}, "makes its own attention mask"),
        ({"position_ids": None}, "neither cu_seq_lens_q nor position_ids"),
    ):
        with pytest.raises(AttentionError, match=said):
            call(**options)
    assert call(Layer().eval(), dropout=0.1)[0].shape == (1, 4, 2, 8)


def test_masks_of_a_batch() -> None:
    with pytest.raises(AttentionError, match="attention_mask with zeros"):
        no_mask(1, 4, 4, attention_mask=torch.tensor([[1, 1, 0, 1]], dtype=torch.bool))
    no_mask(1, 4, 4, attention_mask=torch.ones(1, 4, dtype=torch.bool))  # as BART makes one where none came
    with pytest.raises(AttentionError, match="its own conditions"):
        no_mask(1, 4, 4, use_vmap=True)
