"""Counts conversations that are rendered as they are, although their author may not expect the result: unknown roles,
which no mask trains as the assistant's, and special tokens in contents, which become real ones.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
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
        special = tuple(special)
        self._special = stop_pattern(special)
        self._starts = sorted({token[:2] for token in special if token.strip()})  # `in` is faster than a pattern
        self._json_starts = [msgspec.json.encode(start)[1:-1] for start in self._starts]

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
        """Count a conversation under each special token in its contents; see `count_roles`."""
        look = tools is not None
        for message in messages:  # for each message of each row, so in few steps
            content = message.get("content")
            if len(message) == 2 and type(content) is str:
                for start in self._starts:
                    if start in content:
                        look = True
            else:
                look = True
        if self._special is None or not look:
            return
        with suppress(TypeError, ValueError):  # no JSON, which `_texts` can search all the same
            whole = msgspec.json.encode([messages, tools])
            if not any(start in whole for start in self._json_starts):
                return
        found = set[str]()
        for text in _texts([messages, tools]):
            found.update(self._special.findall(text))
        if found:
            count_names(counts, TOKENS, found, line)


def count_names(counts: EncodeCounts, kind: str, names: Iterable[str], line: int) -> None:
    """Count a conversation under each name; see `ContentCheck.count_roles`."""
    known = counts.found.get(kind, {})
    short = {escape_line(name[:_NAME_CHARACTERS]) for name in names}
    for name in sorted({name if name in known or len(known) < MOST else OTHERS for name in sorted(short)}):
        counts.add(kind, name, line)


def _texts(value: Any) -> Iterator[str]:
    """All texts in a value, except keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
