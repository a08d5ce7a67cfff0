"""Default output of training."""

import sys
from collections.abc import Callable
from typing import TextIO

from ..schemas.escape import escape

Say = Callable[[str], None]
"""Prints a line."""


def print_line(text: str, *, file: TextIO | None = None) -> None:
    """Print untrusted text, escaped; by default to standard output."""
    print(escape(text), file=file or sys.stdout)
