"""A small trainer over packed shards: transformers' own, its checkpoints, its loss, and what it prints."""

from collections.abc import Callable

from ...schemas.escape import escape

Say = Callable[[str], None]
"""Prints a line."""


def print_line(text: str) -> None:
    """Print a line. Control characters are escaped: it may quote data, and a terminal would obey them."""
    print(escape(text))
