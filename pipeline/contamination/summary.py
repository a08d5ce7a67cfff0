"""Adds up hits by source and evaluation file."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ...schemas.report import OverlapCount
from ...schemas.units import plural
from ...stages.overlap.examples import NEARLY, PART, WHOLE
from .hits_file import HitLine

TELLS_NOTHING = "too short, or made of phrases that many rows have"
"""Why a text of an evaluation row is not compared."""
_STRENGTH = {WHOLE: 2, NEARLY: 1, PART: 0}


@dataclass(slots=True)
class OverlapTotals:
    """Examples of a source that share text with rows of an evaluation file. Each example counts once, by its strongest
    match.
    """

    whole: int = 0
    near_whole: int = 0
    ngram: int = 0
    rows: set[int] = field(default_factory=set)
    """Lines of the evaluation rows."""

    @property
    def examples(self) -> int:
        return self.whole + self.near_whole + self.ngram


@dataclass(slots=True)
class OverlapSummary:
    """All hits."""

    examples: int = 0
    """Examples that share text with any evaluation row."""
    totals: dict[tuple[str, str], OverlapTotals] = field(default_factory=dict)
    """By source and evaluation file."""
    shown: list[HitLine] = field(default_factory=list)
    """The hits with texts, the strongest first."""

    @property
    def counts(self) -> list[OverlapCount]:
        """The totals, for tables."""
        return [
            OverlapCount(source, file, one.examples, one.whole, one.near_whole, one.ngram, len(one.rows))
            for (source, file), one in self.totals.items()
        ]

    @property
    def rows(self) -> int:
        """Evaluation rows of which something was found."""
        return len({(file, line) for (_, file), one in self.totals.items() for line in one.rows})

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
    out, last, strongest = OverlapSummary(), "", dict[tuple[str, str], str]()

    def close() -> None:
        for place, match in strongest.items():
            totals = out.totals[place]
            if match == WHOLE:
                totals.whole += 1
            elif match == NEARLY:
                totals.near_whole += 1
            else:
                totals.ngram += 1
        strongest.clear()

    for line in lines:
        if line.id != last:
            close()
            out.examples += 1
            last = line.id
        place = (line.source, line.evaluation)
        out.totals.setdefault(place, OverlapTotals()).rows.add(line.evaluation_line)
        before = strongest.get(place)
        if before is None or _STRENGTH.get(line.match, 0) > _STRENGTH.get(before, 0):
            strongest[place] = line.match
        if line.texts is not None:
            out.shown.append(line)
    close()
    out.shown.sort(key=lambda line: (-_STRENGTH.get(line.match, 0), -line.share))
    return out
