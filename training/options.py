"""Options that loaders share, checked."""

from enum import StrEnum
from typing import TypeVar

from ..schemas.errors import ConfigError

_Enum = TypeVar("_Enum", bound=StrEnum)


def choice(name: str, value: str, kind: type[_Enum]) -> _Enum:
    """The member of `kind` with this value. Raises ConfigError where there is none, and lists those there are."""
    try:
        return kind(value)
    except ValueError:
        raise ConfigError(f"{name}={value!r}: choose one of {', '.join(kind)}") from None


def nearest(number: int, factor: int) -> str:
    """The multiples of `factor` next to a number, for a message: one where there is none below, else two."""
    low = number // factor * factor
    return f"{low:,} or {low + factor:,}" if low > 0 else f"{factor:,}"


def divisible(rows_per_step: int, world_size: int, accumulate: int = 1) -> int:
    """`rows_per_step`, if every rank, and each of its batches, can have as many of them.

    Raises:
        ConfigError: it cannot be divided; names the nearest numbers that can.
    """
    if accumulate < 1:
        raise ConfigError(f"accumulate={accumulate}: at least 1")
    shares = world_size * accumulate
    if rows_per_step >= 1 and rows_per_step % shares == 0:
        return rows_per_step
    batches = f" with {accumulate:,} batches each" if accumulate > 1 else ""
    raise ConfigError(
        f"rows_per_step={rows_per_step:,} cannot be divided among {world_size:,} ranks{batches}, which must all do as "
        f"many; take {nearest(rows_per_step, shares)}"
    )
