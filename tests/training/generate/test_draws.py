"""Draws: exact sampling, from numbers of a sample and step alone."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from packtrain.schemas.samples import SampleSettings  # noqa: E402
from packtrain.training.generate.draws import choose, draw_numbers  # noqa: E402

DRAWS = 60_000


def shares(scores: Any, settings: SampleSettings) -> Any:
    """How often each token is drawn, over many samples of one step."""
    numbers = torch.from_numpy(draw_numbers(list(range(DRAWS)), [3] * DRAWS))
    drawn = torch.cat([choose(scores.expand(len(part), -1), part, settings) for part in numbers.split(5_000)])
    return torch.bincount(drawn, minlength=scores.shape[-1]).double() / DRAWS


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_come_as_often_as_the_model_says(temperature: float) -> None:
    scores = torch.tensor([3.0, 1.0, 2.0, -1.0, 2.0, 0.0, -30.0, 1.5])
    wanted = torch.softmax(scores.double() / temperature, -1)
    found = shares(scores, SampleSettings(temperature))
    deviation = (wanted * (1 - wanted) / DRAWS).sqrt()
    assert ((found - wanted).abs() <= 4.5 * deviation + 1e-12).all()
    expected = (DRAWS * wanted)[wanted * DRAWS > 5]
    chi = ((DRAWS * found[wanted * DRAWS > 5] - expected) ** 2 / expected).sum().item()
    assert chi < 30  # seven degrees of freedom: less than once in ten thousand tries


def test_many_improbable_tokens_together_come_as_often_as_they_should() -> None:
    vocabulary = 1_001
    scores = torch.full((vocabulary,), float(np.log(2e-6)))
    scores[0] = float(np.log(1 - 2e-6 * (vocabulary - 1)))
    found = shares(scores, SampleSettings(1.0))[1:].sum().item()
    wanted = 2e-6 * (vocabulary - 1)
    assert abs(found - wanted) < 4.5 * (wanted / DRAWS) ** 0.5


def test_top_p_draws_from_the_likeliest_alone() -> None:
    scores = torch.log(torch.tensor([0.1, 0.5, 0.05, 0.3, 0.05]))
    assert shares(scores, SampleSettings(1.0, top_p=0.79)).nonzero().flatten().tolist() == [1, 3]
    assert shares(scores, SampleSettings(1.0, top_p=0.81)).nonzero().flatten().tolist() == [0, 1, 3]
    assert shares(scores, SampleSettings(1.0, top_p=1e-9)).tolist() == [0, 1, 0, 0, 0]
    found = shares(scores, SampleSettings(1.0, top_p=0.79))
    assert abs(found[1].item() - 0.625) < 0.01


def test_temperature_0_takes_the_most_probable() -> None:
    scores = torch.tensor([[1.0, 3.0, 2.0], [0.0, -1.0, 5.0]])
    assert choose(scores, torch.zeros(2, dtype=torch.int32), SampleSettings(0.0)).tolist() == [1, 2]


@given(
    seed=st.integers(0, 2**64 - 1), step=st.integers(0, 2**20), others=st.lists(st.integers(0, 2**64 - 1), max_size=5)
)
def test_a_number_is_of_the_seed_and_the_step(seed: int, step: int, others: list[int]) -> None:
    (alone,) = draw_numbers([seed], [step])
    among = draw_numbers([*others, seed], [7] * len(others) + [step])
    assert among[-1] == alone
    assert draw_numbers([seed], [step + 1])[0] != alone


def test_rows_of_a_batch_are_drawn_each_for_itself() -> None:
    torch.manual_seed(0)
    scores = torch.randn(16, 300)
    numbers = torch.from_numpy(draw_numbers(list(range(16)), [5] * 16))
    together = choose(scores, numbers, SampleSettings(0.9))
    alone = [choose(scores[at : at + 1], numbers[at : at + 1], SampleSettings(0.9)).item() for at in range(16)]
    assert together.tolist() == alone
    assert len(set(alone)) > 8
