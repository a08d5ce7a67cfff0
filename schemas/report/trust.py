"""6. Can I trust it?"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stage:
    """How long a stage took."""

    name: str
    seconds: float
    amount: float | None
    unit: str
    """Of the amount, such as `tokens`."""


@dataclass(frozen=True, slots=True)
class Input:
    """One file that was read."""

    source: str
    file: str
    bytes: int
    hash: str


@dataclass(frozen=True, slots=True)
class Trust:
    """What it was made from and with, and how to make it again."""

    sentence: str
    manifest: str | None
    plan: str | None
    tokenizer: str
    template: str | None
    engine: str
    versions: dict[str, str]
    stages: list[Stage]
    inputs: list[Input]
    """The first of them."""
    inputs_in_all: int
    bytes_in_all: int
    configuration: str
    """YAML that reproduces it."""
