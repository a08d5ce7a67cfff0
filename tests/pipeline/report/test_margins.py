"""Room around a figure, guessed before it is drawn."""

from typing import Any

import pytest
from packtrain.pipeline.report.margins import margins


def bars(*names: str, **keys: Any) -> list[dict[str, Any]]:
    return [{"type": "bar", "name": name, **keys} for name in names]


def layout(**keys: Any) -> dict[str, Any]:
    return {"margin": {"t": 30}, "legend": {"y": -0.25}, **keys}


def test_of_a_figure_without_a_legend() -> None:
    assert margins(bars("one"), layout(), 290, wide=False) == {"l": 62, "r": 34, "b": 36}
    title = {"xaxis": {"title": {"text": "tokens"}}}
    assert margins(bars("one"), layout(**title), 290, wide=False)["b"] == 50
    assert margins(bars("one", "two"), layout(showlegend=False), 290, wide=False)["b"] == 36
    assert margins(bars("one", "two", showlegend=False), layout(), 290, wide=False)["b"] == 36


@pytest.mark.parametrize(
    ("names", "wide", "rows"),
    [
        (["train", "holdout"], False, 1),
        (["padded", "<b>padding-free, bfd</b>", "wrapped", "bfd_split"], False, 2),
        (["padded", "<b>padding-free, bfd</b>", "wrapped", "bfd_split"], True, 1),
        (["a name of more than thirty letters"] * 6, False, 6),
    ],
)
def test_a_legend_takes_the_room_of_its_rows(names: list[str], wide: bool, rows: int) -> None:
    got = margins(bars(*names), layout(), 330, wide=wide)["b"]
    # The plot is 300 - b high, the legend a quarter of it below: b = 12 + legend + (300 - b) / 4.
    assert got == -(-(12 + 30 + 20 * (rows - 1) + 75) * 4 // 5)


def test_labels_on_the_left_are_as_wide_as_their_longest_line() -> None:
    words = layout(yaxis={"ticktext": ["8 ranks, 1 row each", "8 ranks,<br>8 rows"]})
    assert margins(bars("one"), words, 290, wide=True)["l"] == 163
    assert margins(bars("one"), layout(yaxis={"ticktext": ["a"]}), 290, wide=True)["l"] == 62
    assert margins(bars("one"), layout(yaxis={"ticktext": []}), 290, wide=True)["l"] == 62
