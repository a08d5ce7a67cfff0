"""How training prints its lines, unless it is told otherwise."""

import sys
from typing import TextIO

from ..schemas.escape import escape


def print_line(text: str, *, file: TextIO | None = None) -> None:
    """Print text that may come from anywhere, escaped; by default to the standard output."""
    print(escape(text), file=file or sys.stdout)
