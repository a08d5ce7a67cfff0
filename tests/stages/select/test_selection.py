"""Every document has one outcome, and the first reason that met it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from packtrain.stages.select.selection import Selection


def test_the_first_reason_wins() -> None:
    selection = Selection.of(4)
    selection.leave_out(np.array([True, False, False, False]), "empty")
    selection.leave_out(np.array([True, True, False, False]), "overlong")
    selection.leave_out(np.array([True, True, False, False]), "duplicate")  # nobody is left for it
    assert selection.copies.tolist() == [0, 0, 1, 1]
    assert selection.stays.tolist() == [False, False, True, True]
    assert selection.left_out("empty").tolist() == [True, False, False, False]
    assert selection.left_out("overlong").tolist() == [False, True, False, False]
    assert not selection.left_out("duplicate").any()
    assert selection.reasons == ["", "empty", "overlong"]


@given(st.lists(st.tuples(st.lists(st.booleans(), min_size=6, max_size=6), st.sampled_from("abc")), max_size=6))
def test_as_a_dictionary_does_it(steps: list[tuple[list[bool], str]]) -> None:
    selection = Selection.of(6)
    reason: dict[int, str] = {}
    for flags, word in steps:
        selection.leave_out(np.array(flags), word)
        for document, flag in enumerate(flags):
            if flag:
                reason.setdefault(document, word)
    for word in "abc":
        assert np.flatnonzero(selection.left_out(word)).tolist() == [d for d in range(6) if reason.get(d) == word]
    assert np.flatnonzero(selection.stays).tolist() == [d for d in range(6) if d not in reason]
    assert (selection.copies > 0).tolist() == selection.stays.tolist()
