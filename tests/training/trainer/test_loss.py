"""The loss by itself: what is trained, with which weight, held against transformers' own and against float64."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from packtrain.training.trainer.loss import targets, token_losses  # noqa: E402

from tests.support.examples import examples  # noqa: E402

X = -100


def batch(labels: list[int], *lengths: int) -> dict[str, Any]:
    return {
        "labels": torch.tensor([labels]),
        "cu_seq_lens_q": torch.tensor(np.cumsum([0, *lengths]), dtype=torch.int32),
    }


# By eye


def test_a_token_is_predicted_one_position_before() -> None:
    found = targets(batch([X, 5, 6, X, X, 8], 3, 3))
    assert found.index.tolist() == [0, 1, 4]
    assert found.tokens.tolist() == [5, 6, 8]
    assert found.document_sums(torch.tensor([1.0, 2.0, 4.0]), batch([X, 5, 6, X, X, 8], 3, 3)).tolist() == [3, 4]


# Against others


@examples(60)
@given(st.data())
def test_it_is_the_sum_over_all_trained_tokens(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any))
    total = sum(lengths)
    labels = data.draw(st.lists(st.sampled_from([X, 0, 1, 2]), min_size=total, max_size=total))
    begin = 0
    for length in lengths:
        if length:
            labels[begin] = X
        begin += length
    seed = data.draw(st.integers(0, 1000))
    logits = torch.randn(total, 3, generator=torch.Generator().manual_seed(seed))
    exact = torch.log_softmax(logits.double(), -1)
    wanted = [-exact[place - 1, label].item() for place, label in enumerate(labels) if label != X]
    found = targets(batch(labels, *lengths))
    assert len(found.tokens) == len(wanted)
    loss = token_losses(logits[found.index], found.tokens).sum().item()
    assert loss == pytest.approx(math.fsum(wanted), rel=2e-6, abs=1e-7)
