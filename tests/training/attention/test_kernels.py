"""What kernels are called with, by functions that have the signatures of each version and compute in plain float64."""

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from packtrain.schemas.errors import AttentionError
from packtrain.training.attention.kernels import Call, bind_flash_attn, bind_torch, choose, survey
from packtrain.training.attention.per_document import per_document

CU = torch.tensor([0, 5, 5, 8], dtype=torch.int32)


def plain(query: Any, key: Any, value: Any, cu: Any, scale: float | None, window: int | None) -> Any:
    assert query.shape[-1] == key.shape[-1] == value.shape[-1], "kernels take one head dimension"
    assert query.shape[-1] % 8 == 0
    return per_document(query, key, value, cu.tolist(), scale=scale, window=window)


def torch_2_10(query: Any, key: Any, value: Any, cu_q: Any, cu_k: Any, max_q: int, max_k: int,
               is_causal: bool = False, return_aux: Any = None) -> Any:  # fmt: skip
    assert is_causal
    return plain(query, key, value, cu_q, None, None)


def torch_2_11(query: Any, key: Any, value: Any, cu_q: Any, cu_k: Any, max_q: int, max_k: int, *,
               return_aux: Any = None, scale: float | None = None,
               window_size: tuple[int, int] = (-1, -1)) -> Any:  # fmt: skip
    left, right = window_size
    assert right == 0, "not causal"
    return plain(query, key, value, cu_q, scale, None if left == -1 else left + 1)


def torch_2_13(query: Any, key: Any, value: Any, cu_seq_q: Any, cu_seq_k: Any, max_q: int, max_k: int, *,
               return_aux: Any = None, scale: float | None = None, window_size: tuple[int, int] = (-1, -1),
               enable_gqa: bool = False, seqused_k: Any = None, block_table: Any = None,
               num_splits: int | None = None) -> Any:  # fmt: skip
    if not enable_gqa and query.size(1) != key.size(1):
        raise ValueError("Expect query and key/value to have the same number of heads")
    return torch_2_11(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale=scale, window_size=window_size)


def flash_2(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int, max_seqlen_k: int,
            dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
            window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0) -> Any:  # fmt: skip
    assert causal
    assert not dropout_p
    left, _ = window_size
    return per_document(q, k, v, cu_seqlens_q.tolist(), scale=softmax_scale, window=None if left == -1 else left + 1,
                        softcap=softcap or None)  # fmt: skip


def tensors(size: int, carried: int) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    return tuple(
        torch.randn(8, heads, width, dtype=torch.float64) for heads, width in ((4, size), (2, size), (2, carried))
    )


BOUND = {
    "2.10": bind_torch(torch_2_10), "2.11": bind_torch(torch_2_11), "2.13": bind_torch(torch_2_13),
    "flash": bind_flash_attn(flash_2),
}  # fmt: skip


@pytest.mark.parametrize("version", BOUND)
@pytest.mark.parametrize(("size", "carried"), [(8, 8), (16, 8), (12, 12), (8, 20)])
@pytest.mark.parametrize("window", [None, 1, 3, 100])
@pytest.mark.parametrize("scale", [0.1, 8**-0.5])
def test_every_signature_means_the_same(
    version: str, size: int, carried: int, window: int | None, scale: float
) -> None:
    if version == "2.10" and window in (1, 3):
        with pytest.raises(AttentionError, match=r"torch 2\.11 or newer"):
            BOUND[version](*tensors(size, carried), Call(CU, 5, scale, window))
        return
    found = BOUND[version](*tensors(size, carried), Call(CU, 5, scale, window))
    expected = per_document(*tensors(size, carried), CU.tolist(), scale=scale, window=window)
    torch.testing.assert_close(found, expected)


def test_the_installed_torch_is_one_of_them() -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    import inspect

    names = set(inspect.signature(varlen.varlen_attn).parameters)
    ours = [set(inspect.signature(one).parameters) for one in (torch_2_10, torch_2_11, torch_2_13)]
    assert any(names & {"is_causal", "scale", "window_size", "enable_gqa"} ==
               one & {"is_causal", "scale", "window_size", "enable_gqa"} for one in ours)  # fmt: skip


def test_soft_caps_with_the_package() -> None:
    found = BOUND["flash"](*tensors(8, 8), Call(CU, 5, 0.2, None, softcap=0.5))
    torch.testing.assert_close(found, per_document(*tensors(8, 8), CU.tolist(), scale=0.2, softcap=0.5))


def test_heads_too_large() -> None:
    with pytest.raises(AttentionError, match=r"at most 256.*packed_block_mask"):
        BOUND["2.13"](*tensors(257, 8), Call(CU, 5, 0.2, None))


def test_on_the_cpu() -> None:
    kernel = choose("cpu")
    assert (kernel.name, kernel.usable) == ("per document", True)
    assert "no CUDA" in kernel.reason
    assert survey("cpu") == [kernel]


def test_bounds_of_other_tokens_are_refused() -> None:
    kernel = choose("cpu")
    assert kernel.run is not None
    with pytest.raises(AttentionError, match="from 0 to 7, but there are 8 tokens"):
        kernel.run(*tensors(8, 8), Call(torch.tensor([0, 7]), 7, 0.2, None))
