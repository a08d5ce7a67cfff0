"""Packed attention against a dense float64 reference with every pattern written out: heads, groups, windows, chunks,
soft caps, sinks, odd lengths, empty documents; and the gradient that must be zero to the bit."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from packtrain.training.attention.block_mask import packed_block_mask
from packtrain.training.attention.varlen import packed_varlen

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
    window: int | None = None, chunk: int | None = None, softcap: float | None = None, sinks: Any = None,
) -> Any:  # fmt: skip
    """(1, H, T, E) → (1, T, H, V), in float64, all T² scores."""
    groups = query.shape[1] // key.shape[1]
    q, k, v = query.double(), key.double().repeat_interleave(groups, 1), value.double().repeat_interleave(groups, 1)
    document = torch.tensor([number for number, length in enumerate(lengths) for _ in range(length)])
    place = torch.tensor([place for length in lengths for place in range(length)])
    seen = (document[:, None] == document[None, :]) & (place[:, None] >= place[None, :])
    if window is not None:
        seen &= place[:, None] - place[None, :] < window
    if chunk is not None:
        seen &= place[:, None] // chunk == place[None, :] // chunk
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
    for function in (packed_varlen, packed_block_mask):
        found, weights = function(Layer(), q, k, v, None, scaling=scale, sliding_window=window, **bounds(lengths))
        assert weights is None
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@examples(30)
@given(LENGTHS, st.integers(1, 6))
def test_chunks_are_documents_cut_again(lengths: list[int], chunk: int) -> None:
    q, k, v = inputs(lengths, 2, 1, 8, 8)
    layer = Layer("chunked_attention", attention_chunk_size=chunk)
    expected = reference(q, k, v, lengths, 8**-0.5, chunk=chunk)
    for function in (packed_varlen, packed_block_mask):
        torch.testing.assert_close(
            function(layer, q, k, v, None, **bounds(lengths))[0], expected, rtol=1e-12, atol=1e-12
        )


@examples(30)
@given(LENGTHS, HEADS, st.sampled_from([None, 4]), st.sampled_from([None, 0.5]), st.booleans())
def test_soft_caps_and_sinks(
    lengths: list[int], heads: tuple[int, int], window: int | None, softcap: float | None, sunk: bool
) -> None:
    q, k, v = inputs(lengths, *heads, 8, 8)
    sinks = torch.linspace(-1, 2, heads[0], dtype=torch.float64) if sunk else None
    found, _ = packed_block_mask(
        Layer(), q, k, v, None, sliding_window=window, softcap=softcap, s_aux=sinks, **bounds(lengths)
    )
    expected = reference(q, k, v, lengths, 8**-0.5, window=window, softcap=softcap, sinks=sinks)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_any_dtype(dtype: Any) -> None:
    lengths = [7, 0, 5]
    q, k, v = inputs(lengths, 4, 2, 16, 16, dtype)
    found, _ = packed_varlen(Layer(), q, k, v, None, **bounds(lengths))
    assert found.dtype == dtype
    limit = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(found.double(), reference(q, k, v, lengths, 0.25), rtol=limit, atol=limit)


@examples(20)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=4), st.sampled_from([None, 3]), st.booleans())
def test_other_documents_have_no_gradient_to_the_bit(lengths: list[int], window: int | None, hard: bool) -> None:
    softcap, sinks = (0.7, torch.ones(4)) if hard else (None, None)
    for function in (packed_block_mask,) if hard else (packed_varlen, packed_block_mask):
        q, k, v = (tensor.requires_grad_() for tensor in inputs(lengths, 4, 2, 8, 8, torch.float32))
        found, _ = function(
            Layer(), q, k, v, None, sliding_window=window, softcap=softcap, s_aux=sinks, **bounds(lengths)
        )
        found[:, lengths[0] :].pow(2).sum().backward()
        for tensor in (q, k, v):
            assert not tensor.grad[:, :, : lengths[0]].any()
        assert v.grad[:, :, lengths[0] :].any()


def test_a_models_own_mask_is_cut_at_document_bounds() -> None:
    q, k, v = inputs([2, 2], 1, 1, 8, 8)
    own = torch.tensor([[1, 0, 0, 0], [0, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]], dtype=torch.bool)[None, None]
    seen = torch.tensor([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]], dtype=torch.bool)
    weights = ((q @ k.transpose(2, 3)) * 8**-0.5).masked_fill(~seen, -math.inf).softmax(-1)
    added = torch.zeros(4, 4, dtype=torch.float64).masked_fill(~own[0, 0], torch.finfo(torch.float64).min)
    for mask in (own, added[None, None]):
        found, _ = packed_block_mask(Layer(), q, k, v, mask, **bounds([2, 2]))
        torch.testing.assert_close(found, (weights @ v).transpose(1, 2))


def test_sparse_attention_looks_only_where_it_was_told() -> None:
    """The third token of the second document chose itself and two of the first document: it sees itself alone."""
    q, k, v = inputs([2, 3], 1, 1, 8, 8)
    chosen = torch.tensor([[[0, 1, 2], [0, 1, 2], [2, 3, 4], [2, 3, 4], [0, 1, 4]]], dtype=torch.int32)
    found, _ = packed_block_mask(Layer(), q, k, v, None, indices=chosen, **bounds([2, 3]))
    torch.testing.assert_close(found[0, 4, 0], v[0, 0, 4])
    expected = reference(q, k, v, [2, 3], 8**-0.5)
    torch.testing.assert_close(found[:, :4], expected[:, :4])
