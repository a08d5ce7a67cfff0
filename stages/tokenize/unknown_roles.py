"""Counts conversations with roles that their template does not know. They are rendered as they are, but no mask trains
such a role as the assistant's.
"""

import re
from collections.abc import Iterable

from ...schemas.escape import escape_line
from ...schemas.rows import Messages
from .encode_counts import EncodeCounts

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
MOST = 8
"""Maximum number of roles of one block to name; the others are counted together."""
ROLES = "unknown_roles"
"""The kind of what is counted; see `EncodeCounts.found`."""
OTHERS = "others"
"""Their name."""
_NAME_CHARACTERS = 40
_TEXT = r"""(?:'[^']{0,40}'|"[^"]{0,40}")"""
_COMPARED = re.compile(rf"[=!]=\s*{_TEXT}|{_TEXT}\s*[=!]=|\bin\s*[\[(][^\])]{{0,500}}")


def known_roles(template: str) -> frozenset[str]:
    """The usual roles, and those that the source of a template compares with."""
    compared = re.findall(_TEXT, " ".join(_COMPARED.findall(template)))
    return _ROLES | {one[1:-1] for one in compared}


def count_roles(line: int, messages: Messages, known: frozenset[str], counts: EncodeCounts) -> None:
    """Count a conversation under each unknown role.

    Args:
        line: its row.
    """
    if unknown := {message["role"] for message in messages} - known:
        count_names(line, unknown, counts)


def count_names(line: int, names: Iterable[str], counts: EncodeCounts) -> None:
    """Count a conversation under each name of an unknown role."""
    seen = counts.found.get(ROLES, {})
    short = {escape_line(name[:_NAME_CHARACTERS]) for name in names}
    for name in sorted({name if name in seen or len(seen) < MOST else OTHERS for name in sorted(short)}):
        counts.add(ROLES, name, line)
