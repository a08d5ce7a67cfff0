"""Default output of training."""

import sys
from typing import TextIO

from ..schemas.escape import escape


def print_line(text: str, *, file: TextIO | None = None) -> None:
    """Print untrusted text, escaped; by default to standard output."""
    print(escape(text), file=file or sys.stdout)
