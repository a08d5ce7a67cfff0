"""The sampling proof: each outcome is planted, in tokens that a person can check."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packtrain.stages.mask.sampling_proof import Outcome, outcome_of

from tests.support.examples import examples

STOP, HEADER = 9, 8


@pytest.mark.parametrize(
    ("prompt", "begin", "end", "outcome"),
    [
        # ids:  1 2 [ 5 6 9 ] 8 3     stops: 9
        ([1, 2], 2, 5, Outcome.EXACT),
        ([1, 7], 2, 5, Outcome.PREFIX),  # another token
        ([1], 2, 5, Outcome.PREFIX),  # the model would begin earlier
        ([1, 2, 5], 2, 5, Outcome.PREFIX),  # the model would begin later
        (None, 2, 5, Outcome.PREFIX),  # the template refuses the prompt
        ([1, 2], 2, 6, Outcome.PAST_STOP),  # 8 is trained too
        ([1, 2], 2, 4, Outcome.NEXT_HEADER),  # the next token is the stop
        ([1, 2], 2, 3, Outcome.MISSING),  # 6 is none
    ],
)
def test_each_outcome_in_tokens(prompt: list[int] | None, begin: int, end: int, outcome: Outcome) -> None:
    ids = np.array([1, 2, 5, 6, STOP, HEADER, 3], np.int32)
    alone = None if prompt is None else np.array(prompt, np.int32)
    assert outcome_of(ids, begin, end, alone, {STOP}) is outcome


@examples(200)
@given(st.data())
def test_exact_means_that_generation_would_give_the_turn(data: st.DataObject) -> None:
    """Outside oracle: a model that knows the turn by heart, asked token after token."""
    ids = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=12))
    begin = data.draw(st.integers(0, len(ids)))
    end = data.draw(st.integers(begin, len(ids)))
    prompt = data.draw(st.sampled_from([ids[:begin], ids[:end], ids[::-1]]))
    stops = data.draw(st.sets(st.integers(0, 4), max_size=2))
    generated = []
    for id in ids[begin:]:  # what such a model gives from the trained tokens' place on
        generated.append(id)
        if id in stops:
            break
    stopped = bool(generated) and generated[-1] in stops
    given_alone = prompt == ids[:begin]
    outcome = outcome_of(np.array(ids, np.int32), begin, end, np.array(prompt, np.int32), stops)
    assert (outcome is Outcome.EXACT) == (given_alone and stopped and generated == ids[begin:end])
    assert (outcome is Outcome.PREFIX) == (not given_alone)
