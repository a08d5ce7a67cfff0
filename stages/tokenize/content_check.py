"""Counts conversations that are rendered as they are, although their author may not expect the result: unknown roles,
which no mask trains as the assistant's, and special tokens in contents, which become real ones.
"""

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from ...schemas.escape import escape_line
from ...schemas.rows import Messages
from ..template.assistant_turns import stop_pattern
from .encode_counts import EncodeCounts

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
MOST = 8
"""Maximum number of roles and tokens of one block to name; the others are counted together."""
ROLES, TOKENS = "unknown_roles", "control_tokens"
"""The kinds of what is counted; see `EncodeCounts.found`."""
OTHERS = "others"
"""Their name."""
_NAME_CHARACTERS = 40
_TEXT = r"""(?:'[^']{0,40}'|"[^"]{0,40}")"""
_COMPARED = re.compile(rf"[=!]=\s*{_TEXT}|{_TEXT}\s*[=!]=|\bin\s*[\[(][^\])]{{0,500}}")


class ContentCheck:
    """Finds unknown roles and special tokens in conversations.

    Args:
        special: the tokenizer's special tokens.
        template: source of the chat template: roles that it compares with are known.
    """

    def __init__(self, special: Iterable[str], template: str) -> None:
        compared = re.findall(_TEXT, " ".join(_COMPARED.findall(template)))
        self._roles = _ROLES | {one[1:-1] for one in compared}
        written = [msgspec.json.encode(token)[1:-1] for token in special if token.strip()]
        self._special = stop_pattern(token.decode() for token in written)
        self._starts = sorted({token[:2] for token in written})  # `in` is faster than a pattern

    def count_roles(self, line: int, messages: Messages, counts: EncodeCounts) -> None:
        """Count a conversation under each unknown role.

        Args:
            line: its row.
        """
        unknown = {message["role"] for message in messages} - self._roles
        if unknown:
            count_names(counts, ROLES, unknown, line)

    def count_tokens(
        self, line: int, messages: Messages, tools: list[dict[str, Any]] | None, counts: EncodeCounts
    ) -> None:
        """Count a conversation under each special token in its contents, as JSON writes it; see `count_roles`."""
        whole = msgspec.json.encode([messages, tools])
        if self._special is not None and any(start in whole for start in self._starts):
            found = set(self._special.findall(whole.decode()))
            if found:
                count_names(counts, TOKENS, found, line)


def count_names(counts: EncodeCounts, kind: str, names: Iterable[str], line: int) -> None:
    """Count a conversation under each name; see `ContentCheck.count_roles`."""
    known = counts.found.get(kind, {})
    short = {escape_line(name[:_NAME_CHARACTERS]) for name in names}
    for name in sorted({name if name in known or len(known) < MOST else OTHERS for name in sorted(short)}):
        counts.add(kind, name, line)
