"""Adds up hits by source and evaluation file."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby

from ...schemas.report import OverlapCount
from ...schemas.units import plural
from ...stages.overlap.examples import NEARLY, PART, WHOLE
from .hits_file import HitLine

TELLS_NOTHING = "too short, or made of phrases that many rows have"
"""Why a text of an evaluation row is not compared."""
_STRENGTH = {PART: 0, NEARLY: 1, WHOLE: 2}


@dataclass(slots=True)
class OverlapSummary:
    """All hits."""

    examples: int = 0
    """Examples that share text with any evaluation row."""
    matches: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)
    """By source and evaluation file, the examples by their strongest match."""
    found: dict[tuple[str, str], set[int]] = field(default_factory=dict)
    """By source and evaluation file, the lines of the evaluation rows."""
    shown: list[HitLine] = field(default_factory=list)
    """The hits with texts, the strongest first."""

    @property
    def counts(self) -> list[OverlapCount]:
        """The numbers by source and evaluation file, for tables."""
        return [
            OverlapCount(*place, one.total(), one[WHOLE], one[NEARLY], one[PART], len(self.found[place]))
            for place, one in self.matches.items()
        ]

    @property
    def rows(self) -> int:
        """Evaluation rows of which something was found."""
        return len({(file, line) for (_, file), lines in self.found.items() for line in lines})

    def sentence(self, examples: int, rows: int) -> str:
        """How many of so many examples share text with how many of so many evaluation rows."""
        if not self.examples:
            return f"no example shares text with any of {plural(rows, 'evaluation row')}"
        return (
            f"{self.examples:,} of {plural(examples, 'example')} share text with {self.rows:,} of "
            f"{plural(rows, 'evaluation row')}"
        )


def summarise(lines: Iterable[HitLine]) -> OverlapSummary:
    """Add up lines, which stand in the order of examples."""
    out = OverlapSummary()
    for _, some in groupby(lines, lambda line: line.id):
        out.examples += 1
        strongest: dict[tuple[str, str], str] = {}
        for line in some:
            place = (line.source, line.evaluation)
            out.found.setdefault(place, set()).add(line.evaluation_line)
            strongest[place] = max(strongest.get(place, PART), line.match, key=_strength)
            if line.texts is not None:
                out.shown.append(line)
        for place, match in strongest.items():
            out.matches.setdefault(place, Counter())[match] += 1
    out.shown.sort(key=lambda line: (-_strength(line.match), -line.share))
    return out


def _strength(match: str) -> int:
    return _STRENGTH.get(match, 0)  # a file that others wrote may hold any word
