"""What an examination found: each finding with its fix."""

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Level(StrEnum):
    """Severity of a finding."""

    GOOD = "good"
    NOTE = "note"
    """Information; nothing is wrong."""
    SLOW = "slow"
    """Training works, but wastes time or may run into a limit."""
    BROKEN = "broken"
    """On this machine as it is set up, training fails or gives wrong results."""


GOOD, NOTE, SLOW, BROKEN = Level


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    subject: str
    """What was checked, such as `torch` or `NCCL_P2P_DISABLE`."""
    level: Level
    found: str
    fix: str = ""
    """How to fix it; never empty for `slow` and `broken`."""

    def __post_init__(self) -> None:
        assert self.fix or self.level in (GOOD, NOTE), self.subject


def subjects(findings: Iterable[Finding], level: Level) -> list[str]:
    """What is of this level."""
    return [finding.subject for finding in findings if finding.level is level]


def to_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """Plain data."""
    found = [{"subject": f.subject, "level": f.level, "found": f.found, "mend": f.fix} for f in findings]
    return {"broken": bool(subjects(findings, BROKEN)), "findings": found}


def verdict(findings: Sequence[Finding]) -> str:
    """One sentence."""
    if broken := subjects(findings, BROKEN):
        return f"Broken: {', '.join(broken)}. The fix stands beside each"
    if slow := subjects(findings, SLOW):
        return f"Nothing is broken. Worth fixing: {', '.join(slow)}"
    return "Nothing is broken"


def as_table(findings: Sequence[Finding], width: int) -> Iterable[str]:
    """Lines of at most `width` characters, found text wrapped under itself. Needs no package."""
    first = max(len(finding.subject) for finding in findings)
    second = max(len(finding.level) for finding in findings)
    for finding in findings:
        text = f"{finding.found}. {finding.fix}" if finding.fix else finding.found
        lines = textwrap.wrap(text, max(20, width - first - second - 4), break_long_words=False) or [""]
        yield f"{finding.subject:<{first}}  {finding.level:<{second}}  {lines[0]}"
        for line in lines[1:]:
            yield f"{'':<{first}}  {'':<{second}}  {line}"
