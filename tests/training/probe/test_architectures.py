"""Which architectures keep packed documents apart: the table of docs/isolation.md, row by row."""

import pytest

from tests.training.probe.architectures import VERDICTS, R, alone, build, judge, unlike

KINDS = [
    pytest.param(kind, *verdicts, id=kind, marks=[pytest.mark.slow] if number % 6 else [])
    for verdicts, kinds in VERDICTS.items()
    for number, kind in enumerate(kinds.split())
]


@pytest.mark.parametrize(("kind", "own", "auto"), KINDS)
def test_as_in_the_table(kind: str, own: str, auto: str) -> None:
    model = build(kind)
    assert judge(model, None)[0] == own
    before = alone(model)
    assert judge(model, "auto")[0] == auto
    if auto != R:
        # Isolated is not enough: it must be the model's own attention, windows, chunks, sinks and all.
        assert unlike(alone(model), before) < 1e-4
