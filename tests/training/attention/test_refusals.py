"""It raises rather than attends wrongly: each thing that it cannot do, and what the message says."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from packtrain.schemas.errors import AttentionError
from packtrain.training.attention.block_mask import block_mask, packed_block_mask
from packtrain.training.attention.layer import window_of
from packtrain.training.attention.varlen import no_mask, packed_varlen

BOTH = (packed_varlen, packed_block_mask)


class LlamaAttention(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, is_causal: bool = True) -> None:
        super().__init__()
        self.config, self.layer_idx, self.is_causal = SimpleNamespace(), 3, is_causal


def call(function: Any, module: Any = None, keys: int = 4, mask: Any = None, **kwargs: Any) -> Any:
    query, key = torch.ones(1, 2, 4, 8), torch.ones(1, 2, keys, 8)
    given = {"position_ids": torch.tensor([[0, 1, 0, 1]]), **kwargs}
    return function(LlamaAttention() if module is None else module, query, key, key, mask, **given)


@pytest.mark.parametrize("function", BOTH)
def test_both(function: Any) -> None:
    assert call(function)[0].shape == (1, 4, 2, 8)
    with pytest.raises(AttentionError, match=r"LlamaAttention of layer 3: 4 queries and 6 keys.*use_cache=False"):
        call(function, keys=6)
    with pytest.raises(AttentionError, match=r"attention dropout 0\.1"):
        call(function, dropout=0.1)
    assert call(function, LlamaAttention().eval(), dropout=0.1)[0].shape == (1, 4, 2, 8)
    for options in ({"is_causal": False}, {"module": LlamaAttention(is_causal=False)}):
        with pytest.raises(AttentionError, match="looks ahead"):
            call(function, **options)
    with pytest.raises(AttentionError, match="takes position_bias"):
        call(function, position_bias=torch.ones(1))
    with pytest.raises(AttentionError, match="neither cu_seq_lens_q nor position_ids"):
        call(function, position_ids=None)


def test_variable_length_alone() -> None:
    with pytest.raises(AttentionError, match=r"makes its own attention mask.*packed_block_mask"):
        call(packed_varlen, mask=torch.ones(1, 1, 4, 4, dtype=torch.bool))
    with pytest.raises(AttentionError, match=r"attention sinks.*packed_block_mask"):
        call(packed_varlen, s_aux=torch.ones(2))
    with pytest.raises(AttentionError, match=r"soft-capped scores \(50\).*packed_block_mask"):
        call(packed_varlen, softcap=50.0)
    with pytest.raises(AttentionError, match="takes indices"):
        call(packed_varlen, indices=torch.zeros(1, 4, 2, dtype=torch.int32))


def test_a_mask_of_another_shape() -> None:
    with pytest.raises(AttentionError, match=r"a mask of shape \(1, 1, 4, 9\)"):
        call(packed_block_mask, mask=torch.ones(1, 1, 4, 9, dtype=torch.bool))


@pytest.mark.parametrize("make", [no_mask, block_mask])
def test_masks_of_a_batch(make: Any) -> None:
    holes = torch.tensor([[1, 1, 0, 1]], dtype=torch.bool)
    with pytest.raises(AttentionError, match="attention_mask with zeros"):
        make(1, 4, 4, attention_mask=holes)
    made = make(1, 4, 4, attention_mask=torch.ones(1, 4, dtype=torch.bool))  # as BART makes one where none came
    assert made is None or made.shape == (1, 1, 4, 4)


def test_a_mask_with_conditions_of_its_own() -> None:
    with pytest.raises(AttentionError, match="its own conditions"):
        no_mask(1, 4, 4, use_vmap=True)


@pytest.mark.parametrize(
    ("config", "own", "given", "expected"),
    [
        ({}, {}, None, None),
        ({}, {}, 4, 4),
        ({"layer_types": ["full_attention"] * 4, "sliding_window": 8}, {}, None, None),
        ({"layer_types": ["sliding_attention"] * 4, "sliding_window": 8}, {}, None, 8),  # Qwen2-MoE passes none
        ({"layer_types": ["sliding_attention"] * 4, "sliding_window": 8}, {"sliding_window": 6}, None, 6),
        ({"sliding_window": 8, "use_sliding_window": False}, {}, None, None),
        ({"sliding_window": None}, {}, None, None),
    ],
)
def test_where_a_window_is_found(config: Any, own: Any, given: int | None, expected: int | None) -> None:
    module = LlamaAttention()
    module.config = SimpleNamespace(**config)
    for name, value in own.items():
        setattr(module, name, value)
    assert window_of(module, given) == expected


@pytest.mark.parametrize(("kind", "expected"), [("phimoe", 8), ("moshi", None)])
def test_a_window_in_the_configuration_alone(kind: str, expected: int | None) -> None:
    """Neither model passes its window to attention, or has layer_types. PhiMoE makes masks with windows; Moshi ignores
    its window."""
    from packtrain.training.probe.tiny import shrink
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shrink(CONFIG_MAPPING[kind](sliding_window=100)))
    assert model.config.sliding_window == 8
    layers = [module for module in model.modules() if "is_causal" in vars(module)]
    assert layers
    assert {window_of(layer, None) for layer in layers} == {expected}
