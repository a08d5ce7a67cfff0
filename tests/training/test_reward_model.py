"""Reward models on packed pairs: scores, losses and gradients are those of transformers' model on padded batches."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from packtrain.schemas.errors import ConfigError
from packtrain.training import preference_loss, use_packed
from packtrain.training.batch import FixedShape, flatten, unpack
from packtrain.training.models.reward_model import last_tokens, score_every_position
from transformers import AutoModelForSequenceClassification

from tests.support.pair_rows import PaddedHalf, padded, pair_row, random_pairs
from tests.training.probe.architectures import configure

torch.set_num_threads(1)
GROUPS = [random_pairs(3, 1), random_pairs(2, 2), random_pairs(1, 3)]
PAIRS = [pair for group in GROUPS for pair in group]
PAD_ID = 3


def reward_model(dtype: torch.dtype) -> Any:
    """A tiny model that scores, with weights so large that its documents differ. In float64 it is a GPT-2: norms of
    models with rotary positions compute in float32 whatever the dtype.
    """
    kind = "qwen3" if dtype == torch.float32 else "gpt2"
    config = configure(kind, **({} if kind == "qwen3" else {"resid_pdrop": 0.0, "embd_pdrop": 0.0}))
    config.num_labels = 1
    config.pad_token_id = PAD_ID
    model = AutoModelForSequenceClassification.from_config(config, dtype=dtype).train()
    for number, weight in enumerate(model.parameters()):
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.1, generator=torch.Generator().manual_seed(number))
    return model


def packed_scores(model: Any, batch: dict[str, Any]) -> torch.Tensor:
    """(D,)"""
    inputs = {name: value for name, value in batch.items() if name not in ("labels", "sides", "reference")}
    scores: torch.Tensor = model(**inputs).logits.flatten()[last_tokens(batch)]
    return scores


def padded_scores(model: Any, half: PaddedHalf) -> torch.Tensor:
    """(P,) as transformers takes them."""
    scores: torch.Tensor = model(input_ids=half.input_ids, attention_mask=half.is_token.long()).logits[:, 0]
    return scores


def gradient(model: Any, loss: torch.Tensor) -> torch.Tensor:
    """(weights,) float64."""
    model.zero_grad()
    loss.backward()
    return torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]).double()


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_loss_and_gradients_are_those_of_padded_batches(dtype: torch.dtype, limit: float, shares: bool) -> None:
    model = reward_model(dtype)
    plain = copy.deepcopy(model)
    plain.set_attn_implementation("sdpa")
    chosen, rejected = (padded_scores(plain, half).double() for half in padded(PAIRS, PAD_ID))
    expected = -torch.nn.functional.logsigmoid(chosen - rejected).mean()
    expected_gradient = gradient(plain, expected)
    use_packed(model)
    score_every_position(model, PAD_ID)
    batch = flatten([pair_row(group, shares=shares) for group in GROUPS])
    scores = packed_scores(model, batch)
    assert scores.shape == (2 * len(PAIRS),)
    result = preference_loss("reward", scores, None, batch["sides"])
    loss = result.total / result.pairs
    assert loss.item() == pytest.approx(expected.item(), rel=limit)
    found = gradient(model, loss)
    assert float(expected_gradient.norm()) > 1e-2
    assert float((found - expected_gradient).norm() / expected_gradient.norm()) < limit


def test_padding_of_any_kind_moves_no_score() -> None:
    model = reward_model(torch.float64)
    rows = [pair_row(group) for group in GROUPS]
    with torch.no_grad():
        halves = [padded_scores(copy.deepcopy(model), half) for half in padded(PAIRS, PAD_ID)]
        expected = torch.stack(halves, dim=1).flatten()
        score_every_position(model, PAD_ID)
        unpacked = packed_scores(model, unpack(rows, PAD_ID))
        use_packed(model)
        fixed = flatten(rows, shape=FixedShape(length=256, docs=8, longest=48, pad_id=PAD_ID))
        fixed_scores = packed_scores(model, fixed)[fixed["sides"] >= 0]
        # Documents whose lengths are multiples of 8, as kernels for context parallelism want them.
        aligned_scores = packed_scores(model, flatten([aligned(row, 8) for row in rows]))
    for scores in (unpacked, fixed_scores, aligned_scores):
        assert torch.allclose(scores, expected, rtol=1e-10)


def aligned(row: Any, multiple: int) -> Any:
    """The row with padding behind each of its documents."""
    parts: dict[str, list[np.ndarray]] = {"input_ids": [], "labels": [], "position_ids": []}
    fills = {"input_ids": PAD_ID, "labels": -100}
    ends = np.cumsum(row.seq_lengths)
    lengths = -(-row.seq_lengths // multiple) * multiple
    for end, length, full in zip(ends.tolist(), row.seq_lengths.tolist(), lengths.tolist(), strict=True):
        for name, fill in fills.items():
            parts[name].append(np.append(getattr(row, name)[end - length : end], [fill] * (full - length)))
        parts["position_ids"].append(np.arange(full))
    columns = {name: np.concatenate(values).astype(np.int32) for name, values in parts.items()}
    return type(row)(
        **columns, seq_lengths=lengths.astype(np.int32), seq_lengths_unpadded=row.seq_lengths, sides=row.sides
    )


def test_an_encoder_is_refused() -> None:
    from transformers import BertConfig

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = AutoModelForSequenceClassification.from_config(BertConfig(num_labels=1, **sizes))
    with pytest.raises(ConfigError, match="BertForSequenceClassification has no head named score"):
        score_every_position(model, PAD_ID)
