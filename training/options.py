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


def divisible(rows_per_step: int, world_size: int) -> int:
    """`rows_per_step`, if every rank can have as many of them.

    Raises:
        ConfigError: it cannot be divided; names the nearest numbers that can.
    """
    if rows_per_step >= 1 and rows_per_step % world_size == 0:
        return rows_per_step
    low = rows_per_step // world_size * world_size
    near = f"{low:,} or {low + world_size:,}" if low > 0 else f"{world_size:,}"
    raise ConfigError(
        f"rows_per_step={rows_per_step:,} cannot be divided among {world_size:,} ranks, which must all do as many; "
        f"take {near}"
    )
