"""Which architectures keep packed documents apart: the table of docs/isolation.md, row by row."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.training.probe.architectures import ARCHITECTURES, Architecture, R, alone, build, judge, unlike

KINDS = [
    pytest.param(one, id=one.kind, marks=[pytest.mark.slow] if number % 3 else [])
    for number, one in enumerate(ARCHITECTURES)
]


@pytest.mark.parametrize("one", KINDS)
def test_as_in_the_table(one: Architecture) -> None:
    model = build(one.kind, **one.settings)
    assert judge(model, None)[0] == one.own
    before = alone(model)
    assert judge(model, "auto")[0] == one.packed
    if one.packed != R:
        # Isolated is not enough: it must be the model's own attention, windows, chunks, sinks and all.
        assert unlike(alone(model), before) < 1e-4
