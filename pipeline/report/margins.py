"""Room around a figure, guessed before it is drawn.

plotly measures what it has drawn, and draws again where its margins were too small. It does so on top of these, which
are enough where letters are not wider than guessed: most figures are drawn once.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

WIDTHS = {True: 1070, False: 520}
"""Pixels of a figure that takes the whole width of a window, and of one of two side by side."""
_LETTER = 7.4
"""Pixels of a letter of 13 pixels, in a wide font."""
_RIGHT, _NUMBER = 34, 62
"""Pixels on the right, for half of the last label, and on the left of an axis up to `100 %`."""
_PADDING = 12
"""plotly's, around whatever it makes room for."""
_TICKS, _TITLE = 36, 14
"""Pixels under a plot: of the ticks and their labels, and of the axis' title."""
_FIRST, _NEXT = 30, 20
"""Pixels of the first row of a legend and of each further one."""
_SIGN = 42
"""Pixels of a legend's sign, and of the room between entries."""


def margins(traces: Sequence[dict[str, Any]], layout: dict[str, Any], height: int, *, wide: bool) -> dict[str, int]:
    """Left, right and bottom, in pixels."""
    left = _left(layout)
    under = _TICKS + (_TITLE if layout.get("xaxis", {}).get("title", {}).get("text") else 0)
    entries = [_words(trace["name"]) for trace in traces if "name" in trace and trace.get("showlegend", True)]
    if entries and layout.get("showlegend", len(entries) > 1):
        # A legend stands below the plot by a part of the plot's height, which is what the margins leave.
        deep = -layout["legend"]["y"]
        legend = _legend(entries, WIDTHS[wide] - left - _RIGHT)
        under = max(under, (_PADDING + legend + deep * (height - layout["margin"]["t"])) / (1 + deep))
    return {"l": left, "r": _RIGHT, "b": math.ceil(under)}


def _left(layout: dict[str, Any]) -> int:
    """Of the longest label."""
    labels = layout.get("yaxis", {}).get("ticktext")
    if labels is None:
        return _NUMBER
    lines = [line for label in labels for line in label.split("<br>")]
    return max(_NUMBER, math.ceil(max(map(len, lines), default=0) * _LETTER) + _PADDING + 10)


def _legend(entries: Sequence[str], room: float) -> float:
    """Height: in one row, or in columns as wide as the widest entry."""
    widths = [_SIGN + len(entry) * _LETTER for entry in entries]
    rows = 1 if sum(widths) <= room else math.ceil(len(widths) / max(room // max(widths), 1))
    return _FIRST + _NEXT * (rows - 1)


def _words(name: str) -> str:
    """Without tags."""
    return re.sub(r"<[^>]*>", "", name)
