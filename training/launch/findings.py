"""What an examination found: each finding with its mend, so that a person knows what to do next."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Level(StrEnum):
    """How bad a finding is."""

    GOOD = "good"
    NOTE = "note"
    """Worth knowing; nothing is wrong."""
    SLOW = "slow"
    """Training works, and wastes time or may run into a limit."""
    BROKEN = "broken"
    """Training on this machine, as it is set up, fails or computes something else."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    subject: str
    """Such as `torch` or `NCCL_P2P_DISABLE`."""
    level: Level
    found: str
    mend: str = ""
    """What to do. Never empty for `slow` and `broken`."""

    def __post_init__(self) -> None:
        assert self.mend or self.level in (Level.GOOD, Level.NOTE), self.subject


@dataclass(frozen=True, slots=True)
class Examination:
    """All findings, in the order in which they were made."""

    findings: tuple[Finding, ...]

    @property
    def broken(self) -> bool:
        """Whether anything is."""
        return any(finding.level is Level.BROKEN for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"broken": self.broken, "findings": [asdict(finding) for finding in self.findings]}

    def rows(self) -> list[tuple[str, str, str]]:
        """Subject, level, and what was found with its mend: for a table."""
        return [(f.subject, f.level.value, f"{f.found}. {f.mend}" if f.mend else f.found) for f in self.findings]

    def verdict(self) -> str:
        """One sentence."""
        broken = [f.subject for f in self.findings if f.level is Level.BROKEN]
        slow = [f.subject for f in self.findings if f.level is Level.SLOW]
        if broken:
            return f"Broken: {', '.join(broken)}. What to do stands beside each"
        if slow:
            return f"Nothing is broken. Worth mending: {', '.join(slow)}"
        return "Nothing is broken"


def good(subject: str, found: str) -> Finding:
    """All is well."""
    return Finding(subject, Level.GOOD, found)


def note(subject: str, found: str, mend: str = "") -> Finding:
    """Worth knowing."""
    return Finding(subject, Level.NOTE, found, mend)


def slow(subject: str, found: str, mend: str) -> Finding:
    """Works, and wastes."""
    return Finding(subject, Level.SLOW, found, mend)


def broken(subject: str, found: str, mend: str) -> Finding:
    """Does not work."""
    return Finding(subject, Level.BROKEN, found, mend)


def as_table(examination: Examination, width: int) -> Iterable[str]:
    """Lines of at most `width` characters, found text wrapped under itself. Needs no package."""
    import textwrap

    rows = examination.rows()
    first = max(len(subject) for subject, _, _ in rows)
    second = max(len(level) for _, level, _ in rows)
    for subject, level, text in rows:
        lines = textwrap.wrap(text, max(20, width - first - second - 4), break_long_words=False) or [""]
        yield f"{subject:<{first}}  {level:<{second}}  {lines[0]}"
        for line in lines[1:]:
            yield f"{'':<{first}}  {'':<{second}}  {line}"
