"""The results of a probe: each check with what it measured, and what to do about a failure."""

from collections.abc import Sequence
from dataclasses import dataclass

from ...schemas.errors import LeakError
from .varlen import ANOTHER_MODEL
from .varlen import NAME as VARLEN


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    name: str
    """`runs`, `isolation`, `control`, `equivalence` or `at length`."""
    passed: bool
    value: str
    """The measured result."""
    threshold: str
    """The expected result."""
    detail: str = ""
    """What the result means, or what went wrong, in one sentence."""

    def describe_failure(self) -> str:
        """The check, what it measured and what it should have measured, as a clause."""
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.name} is {self.value}, and should be {self.threshold}{detail}"


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """All checks of one model, in one setting."""

    model: str
    attention: str
    """Attention implementation in the model's configuration."""
    checks: tuple[Check, ...]
    hint: str
    """What to do about a failure; empty if there is none."""

    @property
    def isolated(self) -> bool:
        """Whether every check passed: documents are isolated, and each gives the same outputs as alone."""
        return all(check.passed for check in self.checks)

    @property
    def values(self) -> str:
        """The measured results in a line."""
        return ", ".join(f"{check.name} = {check.value}" for check in self.checks)

    def check(self, name: str) -> Check | None:
        """Return a check by name; None if it was not made."""
        return next((check for check in self.checks if check.name == name), None)

    def require(self) -> "ProbeReport":
        """Return this report, or raise if a check failed.

        Raises:
            LeakError: a check failed; the message names the check, and what to do.
        """
        if self.isolated:
            return self
        failures = "; ".join(check.describe_failure() for check in self.checks if not check.passed)
        # The check `runs` is only in a report in which it failed.
        problem = "does not run on a packed batch" if self.check("runs") else "does not keep packed documents apart"
        hint = f". {self.hint[0].upper()}{self.hint[1:]}" if self.hint else ""
        raise LeakError(f"{self.model} with attention {self.attention} {problem}: {failures}{hint}")


def describe_remedy(attention: str, checks: Sequence[Check]) -> str:
    """What to do about the checks that failed, for a message; empty if none failed, or the model does not run."""
    failed = {check.name for check in checks if not check.passed}
    if not failed or "runs" in failed:
        return ""
    if any(check.value == "nan" for check in checks):
        return "its outputs are not numbers (NaN or infinite), before any training; look at its weights and their dtype"
    if failed == {"at length"}:
        return (
            "pack with a smaller truncate.max_length (and pack.row_length, if it is set), or take fewer rows a batch, "
            "or another model"
        )
    if attention == VARLEN:  # what `auto` chooses: no other attention is left to try
        return ANOTHER_MODEL
    return f"set attention: auto, or {ANOTHER_MODEL}"
