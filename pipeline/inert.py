"""Text from data, made harmless for a terminal."""

import re

_ACTIVE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, but for tab and newline
    "\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # what reorders text, or hides
    "\ud800-\udfff\U000e0000-\U000e0fff]"
)


def inert(text: str) -> str:
    r"""The text with everything that a terminal obeys, or that hides or reorders text, written as `\x1b` or `\u202e`.

    Tabs and line ends stay. Joiners (U+200C, U+200D) stay, too: scripts and emoji need them.
    """
    return _ACTIVE.sub(_escaped, text)


def inert_line(text: str) -> str:
    """The same on one line."""
    return inert(text).replace("\n", "\\n").replace("\t", "\\t")


def _escaped(match: "re.Match[str]") -> str:
    code = ord(match[0])
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
