"""Checks the number of rows of a step."""

from ...schemas.errors import ConfigError


def nearest(number: int, factor: int) -> str:
    """Write the multiples of `factor` next to a number, for a message; only the larger one if the smaller would be
    0.
    """
    low = number // factor * factor
    return f"{low:,} or {low + factor:,}" if low > 0 else f"{factor:,}"


def divisible(rows_per_step: int, world_size: int, accumulate: int = 1) -> int:
    """Return `rows_per_step`, if it can be divided equally among ranks and their batches.

    Raises:
        ConfigError: it cannot; the message names the nearest numbers that can.
    """
    if accumulate < 1:
        raise ConfigError(f"accumulate={accumulate}: must be at least 1")
    shares = world_size * accumulate
    if rows_per_step >= 1 and rows_per_step % shares == 0:
        return rows_per_step
    batches = f" with {accumulate:,} batches each" if accumulate > 1 else ""
    raise ConfigError(
        f"rows_per_step={rows_per_step:,} cannot be divided among {world_size:,} ranks{batches}, which must all get "
        f"the same number; take {nearest(rows_per_step, shares)}"
    )
