"""Text from outside (data, names of files, errors of libraries), made harmless for a terminal.

Everything that is printed passes through here: lines by the `print_line` of `pipeline.cli_streams` and of the trainer,
tables and the like by the console that `pipeline.console.make_console` gives.
"""

import logging
import re

_ACTIVE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, but for tab and newline
    "\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # what reorders text, or hides
    "\ud800-\udfff\U000e0000-\U000e0fff]"
)


def escape(text: str) -> str:
    r"""The text with everything that a terminal obeys, or that hides or reorders text, written as `\x1b` or `\u202e`.

    Tabs and line ends stay. Joiners (U+200C, U+200D) stay, too: scripts and emoji need them.
    """
    return _ACTIVE.sub(_escaped, text)


def escape_line(text: str) -> str:
    """The same on one line."""
    return escape(text).replace("\n", "\\n").replace("\t", "\\t")


class EscapingFormatter(logging.Formatter):
    """Formats records of a log as Python does where nobody has set logging up, and escapes them."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        return escape(super().format(record))


def _escaped(match: "re.Match[str]") -> str:
    code = ord(match[0])
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
