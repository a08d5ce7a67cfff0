"""The result of a probe, as rows of a table, as plain data, and as an error."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ...schemas.errors import LeakError


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    name: str
    """`runs`, `calls`, `isolation`, `control`, `perturbation`, `equivalence`, `lengths` or `at length`."""
    passed: bool
    value: str
    """The measured result."""
    threshold: str
    """The expected result."""
    detail: str = ""
    """What the result means, or what went wrong, in one sentence."""


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """All checks of one model, in one setting."""

    model: str
    attention: str
    """Attention implementation in the model's configuration."""
    checks: tuple[Check, ...]
    hint: str = ""
    """What to do about a failure."""
    influence: tuple[tuple[float, ...], ...] = ()
    """[d][e]: the largest gradient of document d's loss with respect to embeddings of document e."""
    shown: tuple[int, int] = (0, 0)
    """Tokens of the longest compared document, and of the row that held it."""
    beyond: str = ""
    """What the model is known to do with longer documents or rows; empty if nothing is known."""

    @property
    def isolated(self) -> bool:
        """Whether every check passed: documents are isolated, and each gives the same outputs as alone."""
        return all(check.passed for check in self.checks)

    @property
    def verdict(self) -> str:
        """The result in one sentence, with the lengths for which it was shown."""
        if (runs := self.check("runs")) is not None:
            return f"not shown: the model does not run on a packed batch: {runs.detail}"
        if not self.isolated:
            return "NOT isolated: this model must not be trained on packed rows in this way"
        document, row = self.shown
        return (
            "isolated: packed documents do not see each other, and each is computed as it would be alone. Shown with "
            f"documents of up to {document:,} tokens in a row of {row:,}" + (f"; {self.beyond}" if self.beyond else "")
        )

    def check(self, name: str) -> Check | None:
        """Return a check by name; None if it was not made."""
        return next((check for check in self.checks if check.name == name), None)

    def require(self) -> "ProbeReport":
        """Return this report, or raise if a check failed.

        Raises:
            LeakError: a check failed; the message names the check, and what to do.
        """
        failed = [check for check in self.checks if not check.passed]
        if not failed:
            return self
        said = "; ".join(
            f"{check.name} is {check.value}, and should be {check.threshold}"
            + (f" ({check.detail})" if check.detail else "")
            for check in failed
        )
        does = "does not run on a packed batch" if self.check("runs") else "does not keep packed documents apart"
        hint = f". {self.hint[0].upper()}{self.hint[1:]}" if self.hint else ""
        raise LeakError(f"{self.model} with attention {self.attention} {does}: {said}{hint}")

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """Return (check, passed, value, expected, detail) of each check, for a table."""
        return [
            (check.name, "ok" if check.passed else "FAILED", check.value, check.threshold, check.detail)
            for check in self.checks
        ]

    def to_json(self) -> Mapping[str, Any]:
        """Plain data."""
        return {**asdict(self), "isolated": self.isolated}
