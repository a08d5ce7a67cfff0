"""Numbers as people read them: counts, sizes, shares and durations. Imports nothing else of packtrain."""

_THOUSANDS = ("", "k", "M", "G", "T", "P", "E")
_BYTES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def large(value: float) -> str:
    """`0.3`, `12`, `9,999`, `12.3 k`, `123 M`: in full below 10,000, else at most three digits."""
    if value < 10_000:
        # Counts are whole; a mean below 10 has one digit after the point.
        digits = 0 if value >= 10 or value == int(value) else 1
        return f"{value:,.{digits}f}"
    return _scaled(value, 1000, _THOUSANDS)


def size(value: float) -> str:
    """Bytes, as `812 B`, `1.5 KiB`, `256 MiB`: at most three digits. The units are those of the configuration."""
    return _scaled(value, 1024, _BYTES)


def share(value: float, digits: int = 1, *, fixed: bool = False) -> str:
    """A share of 1 as `12.3 %`. Shares that are not exactly 0 or 1 are never shown as such: `< 0.1 %`, `> 99.9 %`.

    Args:
        digits: after the decimal point.
        fixed: keep trailing zeros, for columns of numbers.
    """
    least = 10.0**-digits
    text = f"{100 * value:.{digits}f}"
    if 0 < value < 1:
        if float(text) == 0:
            return f"< {least:.{digits}f} %"
        if float(text) == 100:
            return f"> {100 - least:.{digits}f} %"
    # A small negative difference is rounded to "-0.0".
    if float(text) == 0:
        text = text.removeprefix("-")
    if not fixed and "." in text:
        text = text.rstrip("0").rstrip(".")
    return f"{text} %"


def duration(seconds: float) -> str:
    """`1.2 ms`, `3.2 s`, `1 min 33 s`, `2 h 5 min`, `3 d 4 h`: two units at most, and never 60 of one."""
    # 0.0995 s would be rounded to 99.5 ms, and is 0.1 s; 59.95 s would be rounded to 60.0 s, and is 1 min.
    if 0 < seconds < 0.0995:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    # Rounded first: 3,599.7 s are 1 h, not 59 min 60 s.
    if round(seconds) < 3600:
        return _two_units(round(seconds), 60, "min", "s")
    if round(seconds / 60) < 1440:
        return _two_units(round(seconds / 60), 60, "h", "min")
    return _two_units(round(seconds / 3600), 24, "d", "h")


def plural(number: int, singular: str, irregular: str | None = None) -> str:
    """`1 file`, `2,000 files`. With the irregular plural `examples are` of `example is`: `2 examples are`."""
    words = singular
    if number != 1:
        words = irregular or f"{singular}s"
    return f"{number:,} {words}"


def _scaled(value: float, base: int, units: tuple[str, ...]) -> str:
    """A number in the largest unit in which it is at least about 1: with at most three digits.

    Args:
        units: each is `base` times the one before it.
    """
    # From 999.5 on, a number would be rounded to four digits: it takes the next unit.
    position = 0
    while value >= 999.5 and position < len(units) - 1:
        value /= base
        position += 1
    # One digit after the point where that makes at most three: 12.3 k, 123 k; there are no parts of a byte.
    digits = 1 if position and value < 99.95 else 0
    return f"{value:,.{digits}f} {units[position]}"


def _two_units(value: int, base: int, large: str, small: str) -> str:
    """A number of the small unit in both: 93 with a base of 60 is `1 min 33 s`."""
    large_number, small_number = divmod(value, base)
    text = f"{large_number:,} {large}"
    if small_number:
        text += f" {small_number} {small}"
    return text
