"""6. Can I trust it?"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stage:
    """How long a stage took."""

    name: str
    seconds: float
    amount: float | None
    unit: str
    """Unit of the amount, such as `tokens`."""


@dataclass(frozen=True, slots=True)
class Input:
    """One file that was read."""

    source: str
    file: str
    bytes: int
    hash: str


@dataclass(frozen=True, slots=True)
class Trust:
    """What the dataset was made from and with, and how to reproduce it."""

    sentence: str
    manifest: str | None
    plan: str | None
    tokenizer: str
    template: str | None
    engine: str
    versions: dict[str, str]
    stages: list[Stage]
    inputs: list[Input]
    """The first inputs."""
    inputs_in_all: int
    bytes_in_all: int
    configuration: str
    """YAML that reproduces the dataset."""
