"""What a probe found, as rows of a table, as plain data, and as an error."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ...schemas.errors import LeakError


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    """`attention`, `layers`, `batch`, `runs`, `calls`, `isolation`, `control`, `perturbation` or `equivalence`."""
    passed: bool
    value: str
    """What was found; a number where there is one."""
    threshold: str
    """What it should be."""
    detail: str = ""
    """A sentence: what it means, or what went wrong."""


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """All checks of one model, in one setting."""

    model: str
    attention: str
    """As the model's configuration has it."""
    checks: tuple[Check, ...]
    fault: str | None = None
    """Of what failed: the setting at fault."""
    mend: str | None = None
    """What to do about it."""
    calls: int | None = None
    """Calls of packed attention in a forward pass; None where they cannot be counted."""
    influence: tuple[tuple[float, ...], ...] = field(default=())
    """[d][e]: the largest gradient of document d's loss with respect to embeddings of document e."""

    @property
    def isolated(self) -> bool:
        """Whether every check passed: packed documents are apart, and each is as it would be alone."""
        return all(check.passed for check in self.checks)

    def check(self, name: str) -> Check | None:
        """One check by name; None if it was not made."""
        return next((check for check in self.checks if check.name == name), None)

    def require(self) -> "ProbeReport":
        """Itself.

        Raises:
            LeakError: a check failed. Names it, the setting at fault and the mend.
        """
        if self.isolated:
            return self
        failed = "; ".join(
            f"{check.name} is {check.value}, and should be {check.threshold}"
            + (f" ({check.detail})" if check.detail else "")
            for check in self.checks
            if not check.passed
        )
        raise LeakError(
            f"{self.model} with attention {self.attention} does not keep packed documents apart: {failed}. "
            f"At fault: {self.fault or 'unknown'}. {self.mend or 'Set batching: padded, or take another model'}"
        )

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """(check, passed or not, value, should be, detail) of each check, for a table."""
        return [
            (check.name, "ok" if check.passed else "FAILED", check.value, check.threshold, check.detail)
            for check in self.checks
        ]

    def to_json(self) -> Mapping[str, Any]:
        """Plain data."""
        return {**asdict(self), "isolated": self.isolated}
