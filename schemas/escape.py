"""Escapes untrusted text (data, file names, errors of libraries) for terminals.

Everything that is printed passes through here, by `print_line` of `pipeline.cli.output` and `put` of
`pipeline.cli.console`.
"""

import json
import logging
import re

_LOGIN = re.compile(r"(?<=://)[^/@\s]*@")
"""User and password of a URL: `me:secret@` in `https://me:secret@host/file`."""
_QUERY = re.compile(r"(\bhttps?://[^\s?'\"<>]+)\?[^\s'\"<>]*")
"""A web address with its query; group 1 is the address without it."""
_ACTIVE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, except tab and newline
    "\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # characters that reorder or hide text
    "\ud800-\udfff"  # halves of surrogate pairs, which UTF-8 cannot hold
    "\U000e0000-\U000e0fff]"  # tags, which no font shows
)
"""Characters that a terminal acts on, or that make text look different from what it is."""


def without_secrets(text: str) -> str:
    """The text without users and passwords in URLs, and without the queries of web addresses, which may be signatures.
    For everything that is said to the user; texts of the data are shown as they are.
    """
    return _QUERY.sub(r"\1", _LOGIN.sub("", text))


def escape(text: str) -> str:
    r"""The text with control characters, and characters that hide or reorder text, written as `\x1b` or `\u202e`.

    Tabs and line ends stay, and so do joiners (U+200C, U+200D), which scripts and emoji need.
    """
    return _ACTIVE.sub(_escaped, text)


def escape_line(text: str) -> str:
    r"""The text as one line: what `escape` gives, with tabs and line ends as `\t` and `\n`."""
    return escape(text).replace("\n", "\\n").replace("\t", "\\t")


def escape_json(data: bytes) -> bytes:
    """JSON in UTF-8, in which the characters that `escape` replaces are JSON escapes: the same values, safe to look at
    in a terminal.
    """
    # In JSON as packtrain writes it, such characters stand in texts alone, where an escape has the same value.
    # `json.dumps` writes the escape between quotes, which are cut off, and leaves DEL (0x7f) as it is.
    return _ACTIVE.sub(lambda match: json.dumps(match[0])[1:-1].replace("\x7f", "\\u007f"), data.decode()).encode()


class EscapingFormatter(logging.Formatter):
    """Formats log records as Python does without configuration, escaped and without secrets of URLs."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as escaped text."""
        return escape(without_secrets(super().format(record)))


def _escaped(match: "re.Match[str]") -> str:
    """A character as `\\x1b`, `\\u202e` or `\\U000e0001`, whichever is the shortest that holds its number."""
    code = ord(match[0])
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
