"""Writes changes in words: a sign, the difference, and its share of the old value."""

import json
import re
from typing import Any

from ....schemas.units import exact, share, size
from .changes import Measure, Setting, Side

_HASH = re.compile("[0-9a-f]{64}")
LONGEST = 120
"""Maximum number of characters of a setting's value."""


def signed(a: float, b: float) -> str:
    """Write a change as `▲ +1,234 (+12.3 %)`, `▼ −5 (−0.4 %)`, `▲ +7 (new)`, or `=` for no change."""
    if a == b:
        return "="
    sign = "▲ +" if b > a else "▼ −"
    return f"{sign}{exact(abs(b - a))} ({relative(a, b)})"


def relative(a: float, b: float) -> str:
    """Write the relative change: `+12.3 %`, `−8 %`, `under 0.1 %`, `new` if it was 0, `gone` if it is 0 now."""
    if a == b:
        return "="
    if not a:
        return "new"
    if not b:
        return "gone"
    return _percent(abs(b - a) / abs(a), "+" if b > a else "−")


def _percent(part: float, sign: str = "") -> str:
    """Write a share with its sign. A tiny one becomes `under 0.1 %`, because `+< 0.1 %` would read badly."""
    text = share(part)
    return f"under {text[2:]}" if text.startswith("<") else f"{sign}{text}"


def figure(value: float | None, unit: str) -> str:
    """Write a measure's value; `–` if there is none."""
    if value is None:
        return "–"
    if unit == "share":
        return f"{value * 100:.2f} %"
    if unit == "bytes":
        return size(value)
    return exact(value) if unit == "count" else f"{value:,.1f}"


def change_of(measure: Measure) -> str:
    """Say how a measure changed; shares change in percentage points."""
    a, b = measure.a, measure.b
    if a is None or b is None:
        return "new" if a is None else "gone"
    if a == b:
        return "="
    if measure.unit == "share":
        text, up = _points(abs(b - a)), b > a
        sign = "" if text.startswith("under") else "+" if up else "−"
        return f"{'▲' if up else '▼'} {sign}{text} points"
    if measure.unit == "count":
        return signed(a, b)
    text = figure(abs(b - a), measure.unit)
    return f"{'▲ +' if b > a else '▼ −'}{text} ({relative(a, b)})"


def _points(difference: float) -> str:
    text = f"{difference * 100:.2f}"
    return "under 0.01" if text == "0.00" else text


def value_of(value: Any) -> str:
    """Write a setting's value on one line; numbers with thousands separators, `–` for a missing value."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return exact(value) if isinstance(value, int) else f"{value:g}"
    if isinstance(value, str) and _HASH.fullmatch(value):
        return value[:16]
    text = value if isinstance(value, str) and value.strip() else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def setting_text(setting: Setting) -> str:
    """Write a changed setting for the headline: `max_length 2,048 → 4,096`."""
    key = setting.key.removeprefix("truncate.").removeprefix("pack.")
    if setting.section == "versions":
        key = f"{key}'s version"
    elif isinstance(setting.a, str) and _HASH.fullmatch(setting.a):
        return {"hash": "another tokenizer", "template": "another chat template"}.get(key, f"another {key}")
    texts = ["unset" if value is None else value_of(value) for value in (setting.a, setting.b)]
    return f"{key} {' → '.join(text if len(text) <= 40 else f'{text[:39]}…' for text in texts)}"


def than(a: float, b: float) -> str:
    """Compare B with A in words that precede a plural: `12.3 % more`, `8 % fewer`, `2.61 times as many`, `as many`."""
    if a == b:
        return "as many"
    if not a or not b:
        return exact(b) if b else "no"
    if b >= 2 * a:
        return f"{b / a:,.2f} times as many"
    return f"{_percent(abs(b - a) / a)} {'more' if b > a else 'fewer'}"


def rows_word(side: Side) -> str:
    """The word for the dataset's rows: rows or pairs."""
    return "pairs" if side.preference else "rows"
