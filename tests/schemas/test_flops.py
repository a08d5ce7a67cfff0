"""What a token and a pair of tokens cost, by hand."""

import numpy as np
from packtrain.schemas.flops import ModelShape, attention_flops, matrix_flops


def test_by_hand() -> None:
    model = ModelShape(parameters=1000, layers=2, hidden=10)
    scores = 2 * 10 * 64 / 2  # two operations a dimension, half of the square
    assert model.attention(64) == 3 * (2 * scores) * 2  # scores and values, forward and twice that backward, two layers
    assert model.flops(8, 64) == 6 * 1000 * 8 + model.attention(64)
    assert attention_flops(32, 2 * 10, 2) == model.attention(64)
    assert matrix_flops(1000, 8, trained=False) == 4 * 1000 * 8
    tokens, squares = np.array([8, 5]), np.array([64, 13])
    costs = model.weigh(tokens, squares) * 6 * 1000
    assert np.allclose(costs, [model.flops(8, 64), model.flops(5, 13)])
