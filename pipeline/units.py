"""Counts, sizes, shares, rates and durations for people; see `schemas.units`, which the trainer's side uses, too."""

from ..schemas.units import UNTOLD, count, duration, parse_duration, parse_size, plural, rate, share, size

__all__ = ["UNTOLD", "count", "duration", "parse_duration", "parse_size", "plural", "rate", "share", "size"]
