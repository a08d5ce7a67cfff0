"""What a token and a pair of tokens cost, by hand."""

import numpy as np
from packtrain.schemas.model_facts import ModelShape


def test_by_hand() -> None:
    scores = 2 * 10 * 64 / 2  # two operations a dimension, half of the square
    attention = 3 * (2 * scores) * 2  # scores and values, forward and twice that backward, two layers
    costs = ModelShape(parameters=1000, layers=2, hidden=10).weigh(np.array([8, 5]), np.array([64, 0])) * 6 * 1000
    assert np.allclose(costs, [6 * 1000 * 8 + attention, 6 * 1000 * 5])
