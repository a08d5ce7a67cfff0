"""The loss by itself: what is trained, with which weight, held against transformers' own and against float64."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from packtrain.training.trainer.loss import (  # noqa: E402
    LossMean,
    targets,
    token_losses_in_chunks,
    weighted_sum,
)

from tests.support.examples import examples  # noqa: E402

X = -100


def batch(labels: list[int], *lengths: int) -> dict[str, Any]:
    return {
        "labels": torch.tensor([labels]),
        "cu_seq_lens_q": torch.tensor(np.cumsum([0, *lengths]), dtype=torch.int32),
    }


# By eye


def test_a_token_is_predicted_one_position_before() -> None:
    found = targets(batch([X, 5, 6, X, X, 8], 3, 3), LossMean.TOKEN)
    assert found.index.tolist() == [0, 1, 4]
    assert found.tokens.tolist() == [5, 6, 8]
    assert found.pieces.tolist() == [0, 0, 1]
    assert (found.weights, found.units) == (None, 3)


def test_documents_count_alike_and_those_without_a_trained_token_not_at_all() -> None:
    found = targets(batch([X, 5, 6, X, X, X, 8], 3, 2, 2), LossMean.DOCUMENT)
    assert found.weights is not None
    assert found.weights.tolist() == [0.5, 0.5, 1.0]
    assert found.units == 2


def test_documents_of_no_tokens_in_batches_of_a_fixed_shape_change_nothing() -> None:
    found = targets(batch([X, 5, X, 6, 7], 2, 0, 0, 3, 0, 0), LossMean.DOCUMENT)
    assert found.weights is not None
    assert found.weights.tolist() == [1.0, 0.5, 0.5]
    assert found.units == 2


def test_of_padded_batches_every_row_is_a_document() -> None:
    found = targets({"labels": torch.tensor([[X, 5, 6], [X, 7, X], [X, X, X]])}, LossMean.DOCUMENT)
    assert found.index.tolist() == [0, 1, 3]
    assert found.tokens.tolist() == [5, 6, 7]
    assert found.weights is not None
    assert found.weights.tolist() == [0.5, 0.5, 1.0]
    assert found.units == 2


def test_nothing_to_train_is_zero_with_a_gradient_of_zero() -> None:
    for mean in LossMean:
        found = targets(batch([X, X, X], 3), mean)
        head = torch.ones(7, 4, requires_grad=True)
        logits = torch.ones(3, 4)[found.index] @ head.T
        loss = weighted_sum(logits, found)
        loss.backward()
        assert (loss.item(), found.units) == (0.0, 0)
        assert head.grad is not None
        assert head.grad.abs().sum().item() == 0.0


# Against others


@examples(60)
@given(st.data())
def test_it_is_the_mean_that_its_name_says(data: st.DataObject) -> None:
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
    documents, begin = [], 0
    for length in lengths:
        losses = [
            -exact[begin + place - 1, labels[begin + place]].item()
            for place in range(length)
            if labels[begin + place] != X
        ]
        documents.append(losses)
        begin += length
    tokens = [loss for losses in documents for loss in losses]
    means = [math.fsum(losses) / len(losses) for losses in documents if losses]
    for mean, wanted in ((LossMean.TOKEN, tokens), (LossMean.DOCUMENT, means)):
        found = targets(batch(labels, *lengths), mean)
        assert found.units == len(wanted)
        loss = weighted_sum(logits[found.index], found).item() / max(1, found.units)
        assert loss == pytest.approx(math.fsum(wanted) / max(1, len(wanted)), rel=2e-6, abs=1e-7)


def test_it_is_the_loss_of_transformers() -> None:
    loss_utils = pytest.importorskip("transformers.loss.loss_utils")
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 50, 11, generator=generator)
    labels = torch.randint(0, 11, (1, 50), generator=generator)
    labels[torch.rand(1, 50, generator=generator) < 0.6] = X
    labels[0, 0] = X
    found = targets(batch(labels[0].tolist(), 50), LossMean.TOKEN)
    expected = loss_utils.ForCausalLMLoss(logits, labels, 11, num_items_in_batch=torch.tensor(found.units))
    assert found.units == int((labels != X).sum())
    assert weighted_sum(logits[0][found.index], found).item() / found.units == pytest.approx(expected.item(), rel=1e-6)


def test_chunks_change_nothing() -> None:
    logits, tokens = torch.randn(9000, 5), torch.randint(0, 5, (9000,))
    whole = torch.nn.functional.cross_entropy(logits, tokens, reduction="none")
    assert torch.equal(token_losses_in_chunks(logits, tokens), whole)
    assert token_losses_in_chunks(logits[:0], tokens[:0]).shape == (0,)
