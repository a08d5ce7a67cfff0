"""How often the examples of each source are packed, by `repeat` and `weight`, and which of their copies share a row."""

from collections.abc import Mapping

from ...schemas.dataset.ledger import SourceLedger
from ...schemas.tables.reasons import NOT_DRAWN
from ...schemas.units import plural

_NAMED = 8
"""At most so many sources are named, those that are used most often first."""


def uses_sentence(sources: Mapping[str, SourceLedger]) -> str:
    """Say how often each source's examples are used; empty if each is used once. Held-out examples do not count.

    Args:
        sources: the closed ledger of each source.
    """
    uses = {name: _uses_of(entry) for name, entry in sources.items()}
    known = {name: often for name, often in uses.items() if often is not None}
    if all(often == 1 for often in known.values()):
        return ""
    most = sorted(known, key=lambda name: -known[name])
    listed = [f"{name} {_times(known[name])} ({_examples_of(sources[name])})" for name in most[:_NAMED]]
    more = f", and {len(most) - _NAMED:,} more sources less often" if len(most) > _NAMED else ""
    together = sum(entry.copies_together for entry in sources.values())
    beside = f" {plural(together, 'copy stands', 'copies stand')} in a row with another one." if together else ""
    return f"Examples are used: {', '.join(listed)}{more}.{beside}"


def _uses_of(entry: SourceLedger) -> float | None:
    """How often an example of a source is packed, on average over those that could be; None if there are none."""
    drawn = entry.examples_packed.get("train", 0)
    every = drawn + entry.examples_dropped.get(NOT_DRAWN, 0)
    return (drawn + entry.examples_repeated) / every if every else None


def _examples_of(entry: SourceLedger) -> str:
    drawn, left = entry.examples_packed.get("train", 0), entry.examples_dropped.get(NOT_DRAWN, 0)
    return plural(drawn, "example") if not left else f"{drawn:,} of {plural(drawn + left, 'example')}"


def _times(often: float) -> str:
    """`once`, `20 times`, `2.5 times`, `0.04 times`."""
    if often == 1:
        return "once"
    digits = 0 if often >= 10 or often == int(often) else 1 if often >= 1 else 2
    if often < 0.005:
        return "less than 0.01 times"
    number = f"{often:,.{digits}f}"
    return f"{number.rstrip('0').rstrip('.') if digits else number} times"
