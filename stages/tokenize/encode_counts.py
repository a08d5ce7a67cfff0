"""What is counted while a block is encoded: one counter, and one list of the first places of each kind."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ...schemas.errors import RowRejectedError
from ...schemas.escape import escape_line
from ...schemas.rows import Example

MOST_PLACES = 1_000
"""Maximum number of places of one kind and name; all of them are counted."""
REJECTED = "rows_rejected"
"""The kind of rows that cannot be used, by reason."""
DROPPED = "examples_dropped"
"""The kind of examples that cannot be used although their row may have given other examples, by reason."""
ROLES = "unknown_roles"
"""The kind of conversations with roles that their template does not know, by role. They are rendered as they are, but
no mask trains such a role as the assistant's."""
SPECIAL = "special_in_contents"
"""The kind of special tokens in contents, by token."""
WITH_SPECIAL = "examples_with_special"
"""The kind of examples with special tokens in their contents."""
NOT_JSON = "call_arguments_not_json"
"""The kind of tool calls whose arguments are a text that is not the JSON of an object; they stay text."""
COLUMNS_NOT_READ = "columns_not_read"
"""The kind of columns that neither the format nor the template reads, by name."""
KEYS_NOT_READ = "keys_not_read"
"""The kind of keys of messages that neither the format nor the template reads, by name."""
MOST_NAMES = 64
"""Maximum number of names of columns, or of keys, that one block counts alone; the rows of all others are counted
together."""
MOST_ROLES = 8
"""Maximum number of roles, or of special tokens, of one block to name; all further ones are counted together."""
OTHERS = "others"
"""The name under which they are counted."""
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
_NAME_CHARACTERS = 40
"""Characters of a role, a token or a name that are kept."""
# A quoted text in the source of a template; and such texts where it compares something with them.
_TEXT = r"""(?:'[^']{0,40}'|"[^"]{0,40}")"""
_COMPARED = re.compile(rf"[=!]=\s*{_TEXT}|{_TEXT}\s*[=!]=|\bin\s*[\[(][^\])]{{0,500}}")


class Place(NamedTuple):
    """Where something was found."""

    kind: str
    """A field of the ledger, or one of its reasons."""
    name: str
    """What was found, such as the reason of a reject or an unknown role; "" if the kind says it all."""
    line: int
    """The row in the block, from 0."""
    sub: int
    """Number of the example in its row; -1 if the row is one example, or the place is the whole row."""
    detail: str = ""
    """What a message says of the place; "" if there is nothing to say."""


@dataclass(slots=True)
class EncodeCounts:
    """Counts of one block's encoding, for the ledger, notes and rejects.jsonl."""

    examples: int = 0
    """Examples that were encoded; a preference pair is one."""
    tokens: int = 0
    """Their tokens, with those that were added around texts."""
    end_of_sequence: int = 0
    """Texts to which the end-of-sequence token was appended, because they did not end with it."""
    special: int = 0
    """Tokens that the tokenizer adds around plain texts."""
    straddles: int = 0
    """Tokens with characters of two spans, for instance of a prompt and of its completion."""
    by_kind: dict[str, dict[str, int]] = field(default_factory=dict)
    """Kind → name → how many rows, conversations or turns. Kinds are fields of the ledger, or its reasons."""
    places: list[Place] = field(default_factory=list)
    """The first places of each kind and name: how many, the caller of `add` decides."""

    def add(
        self, kind: str, name: str, line: int, sub: int = -1, detail: str = "", *, places: int = 1, count: int = 1
    ) -> None:
        """Count something, and note where it is.

        Args:
            places: maximum number of places to note for this kind and name.
            count: how many there are at this place.
        """
        names = self.by_kind.setdefault(kind, {})
        # A place that counts for several, as for two calls of one conversation, uses up as many of the first `places`.
        count_before = names.get(name, 0)
        if count_before < places:
            self.places.append(Place(kind, name, line, sub, detail))
        names[name] = count_before + count

    def refuse(self, example: Example, error: RowRejectedError) -> None:
        """Count an example that cannot be encoded: as its row, if the row is this one example."""
        # A row of several examples is not rejected as a whole: its other examples may be used.
        kind = REJECTED if example.sub < 0 else DROPPED
        self.add(kind, error.reason, example.line, example.sub, error.detail, places=MOST_PLACES)

    def add_roles(self, unknown: Iterable[str], line: int) -> None:
        """Count a conversation under each of its unknown roles."""
        counted = self.by_kind.get(ROLES, {})
        # Roles come from the data, and end up in the ledger and in notes: they are cut and escaped.
        names = {escape_line(role[:_NAME_CHARACTERS]) for role in unknown}
        named = {name for name in names if name in counted or len(counted) < MOST_ROLES}
        if named != names:
            named.add(OTHERS)
        for name in sorted(named):
            self.add(ROLES, name, line)

    def add_special(self, example: Example, tokens: Iterable[str]) -> None:
        """Count the special tokens in the contents of an example.

        Args:
            tokens: their texts, each as often as it was found.
        """
        self.add(WITH_SPECIAL, "", example.line, example.sub)
        names = self.by_kind.setdefault(SPECIAL, {})
        for token, count in sorted(Counter(tokens).items()):
            name = escape_line(token[:_NAME_CHARACTERS])
            if name not in names and len(names) >= MOST_ROLES:
                name = OTHERS
            names[name] = names.get(name, 0) + count

    def add_names(self, kind: str, names: Mapping[str, int]) -> None:
        """Count columns or keys that are not read: the most frequent ones by their names, all others together.

        Args:
            kind: `COLUMNS_NOT_READ` or `KEYS_NOT_READ`.
            names: name → how many rows have it.
        """
        counts = self.by_kind.setdefault(kind, {})
        # By name where counts are equal, so that the order of the rows does not decide.
        most_frequent_first = sorted(names.items(), key=lambda item: (-item[1], item[0]))
        for rank, (name, count) in enumerate(most_frequent_first):
            short_name = escape_line(name[:_NAME_CHARACTERS])
            # One call names all columns of a block, and its rank limits these. Variables of rows are counted by many
            # calls with one name each, all of rank 0, which only the number of names so far can limit. Columns and
            # variables are counted under one kind, hence twice as many.
            if rank >= MOST_NAMES or (short_name not in counts and len(counts) >= 2 * MOST_NAMES):
                short_name = OTHERS
            counts[short_name] = counts.get(short_name, 0) + count

    def total(self, kind: str) -> int:
        """How many there are of a kind, under all names."""
        return sum(self.by_kind.get(kind, {}).values())


def known_roles(template: str) -> frozenset[str]:
    """The usual roles, and all quoted texts with which the source of a template compares something: of
    `{% if message.role == 'ipython' %}`, also "ipython".
    """
    literals = re.findall(_TEXT, " ".join(_COMPARED.findall(template)))
    return _ROLES | {literal[1:-1] for literal in literals}  # without its quotes
