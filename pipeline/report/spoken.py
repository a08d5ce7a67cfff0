"""Numbers as people read them."""

import math

_LARGE = ("", " k", " M", " G", " T", " P", " E", " Z", " Y")


def count(value: float) -> str:
    """1234567 as 1,234,567; a fraction below 100 keeps one digit."""
    if not math.isfinite(value):
        return "–"
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:,.1f}"


def large(value: float) -> str:
    """1234567 as 1.2 M; below 10,000 in full."""
    if not math.isfinite(value):
        return "–"
    if abs(value) < 10_000:
        return count(value)
    for unit in _LARGE:
        if abs(value) < 999.5:
            return f"{value:.1f}{unit}" if abs(value) < 99.95 else f"{value:.0f}{unit}"
        value /= 1000
    return f"{value:.1e}"


def share(value: float, digits: int = 1) -> str:
    """0.9634 as 96.3 %. Never 0 or 100 where it is not quite that."""
    if not math.isfinite(value):
        return "–"
    step = 10.0**-digits
    if 0 < value * 100 <= step / 2:
        return f"< {step:g} %"
    if 100 - step / 2 <= value * 100 < 100:
        return f"> {100 - step:g} %"
    text = f"{value * 100:.{digits}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} %"


def times(value: float) -> str:
    """1.234 as 1.23 ×."""
    if not math.isfinite(value):
        return "–"
    return f"{value:.2f} ×" if value < 100 else f"{value:,.0f} ×"


def flops(value: float) -> str:
    """In the unit that keeps it short, such as 3.2 EFLOP."""
    text = large(value) if abs(value) >= 10_000 else count(value)
    return f"{text}FLOP" if text[-1:].isalpha() else f"{text} FLOP"


def many(number: float, what: str, plural: str | None = None) -> str:
    """`1 row`, `2 rows`."""
    return f"{count(number)} {what if number == 1 else plural or what + 's'}"
