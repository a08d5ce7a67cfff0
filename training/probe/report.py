"""The result of a probe, as rows of a table, as plain data, and as an error."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ...schemas.errors import LeakError

NOT_NUMBERS = "the model's outputs, which are not numbers"
"""The fault of a model whose outputs are NaN or infinite; it does not concern isolation."""


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    name: str
    """`attention`, `layers`, `batch`, `runs`, `calls`, `isolation`, `control`, `perturbation`, `equivalence`,
    `at length`, `dropout`, `length`, `stretch` or `heads`."""
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
    fault: str | None = None
    """The setting that caused the failure."""
    fix: str | None = None
    """How to fix the failure."""
    calls: int | None = None
    """Number of calls of packed attention in a forward pass; None if they cannot be counted."""
    influence: tuple[tuple[float, ...], ...] = field(default=())
    """[d][e]: the largest gradient of document d's loss with respect to embeddings of document e."""
    shown: tuple[int, int] = (0, 0)
    """Tokens of the longest compared document, and of the row that held it."""
    beyond: str = ""
    """What the model is known to do with longer documents or rows; empty if nothing is known."""

    @property
    def verdict(self) -> str:
        """The result in one sentence, with the lengths for which it was shown."""
        if self.fault == NOT_NUMBERS:
            return "not shown: the model's outputs are not numbers (NaN or infinite), so isolation cannot be tested"
        if any(check.name == "runs" for check in self.checks):
            return "not shown: the model does not run"
        if self._failed() == {"heads"}:
            return "NOT divisible: documents are apart, but devices cannot share this model's attention heads equally"
        if not self.isolated:
            return "NOT isolated: this model must not be trained on packed rows in this way"
        document, row = self.shown
        return (
            "isolated: packed documents do not see each other, and each is computed as it would be alone. Shown with "
            "documents "
            f"of up to {document:,} tokens in a row of {row:,}" + (f"; {self.beyond}" if self.beyond else "")
        )

    @property
    def isolated(self) -> bool:
        """Whether every check passed: documents are isolated, and each gives the same outputs as alone."""
        return all(check.passed for check in self.checks)

    def check(self, name: str) -> Check | None:
        """Return a check by name; None if it was not made."""
        return next((check for check in self.checks if check.name == name), None)

    def require(self) -> "ProbeReport":
        """Return this report, or raise if a check failed.

        Raises:
            LeakError: a check failed; the message names the check, the setting at fault and the fix.
        """
        if self.isolated:
            return self
        failed = "; ".join(
            f"{check.name} is {check.value}, and should be {check.threshold}"
            + (f" ({check.detail})" if check.detail else "")
            for check in self.checks
            if not check.passed
        )
        raise LeakError(f"{self._opening()}: {failed}. At fault: {self.fault or 'unknown'}. {self._fix()}")

    def _failed(self) -> set[str]:
        return {check.name for check in self.checks if not check.passed}

    def _opening(self) -> str:
        names = self._failed()
        if names == {"heads"}:
            return f"{self.model} has attention heads that the devices cannot share equally"
        if self.fault == NOT_NUMBERS:
            return f"{self.model} computes outputs that are not numbers (NaN or infinite), before any training"
        if "runs" in names:
            return f"{self.model} with attention {self.attention} does not run on a packed batch"
        if names <= {"dropout"}:
            return f"{self.model} uses attention dropout, which attention {self.attention} does not compute"
        return f"{self.model} with attention {self.attention} does not keep packed documents apart"

    def _fix(self) -> str:
        said = self.fix or "take another model, or pad its documents with PackedLoader(unpacked=True)"
        return said[0].upper() + said[1:]

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """Return (check, passed, value, expected, detail) of each check, for a table."""
        return [
            (check.name, "ok" if check.passed else "FAILED", check.value, check.threshold, check.detail)
            for check in self.checks
        ]

    def to_json(self) -> Mapping[str, Any]:
        """Plain data; the format calls the fix `mend`."""
        fields = asdict(self)
        return {**fields, "mend": fields.pop("fix"), "isolated": self.isolated}
