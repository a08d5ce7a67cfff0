"""How many examples a property is tried on: as many as it asks for, but no more than `MOST`, or PACKTRAIN_EXAMPLES."""

import os

from hypothesis import HealthCheck, settings

MOST = int(os.environ.get("PACKTRAIN_EXAMPLES", "60"))


def examples(count: int, **more: object) -> settings:
    """So many examples; `more` as `hypothesis.settings` takes it."""
    # What hypothesis says of the first examples and of their time depends on luck and on the machine, not on the code.
    every = list(HealthCheck)
    return settings(max_examples=min(count, MOST), deadline=None, suppress_health_check=every, **more)  # type: ignore[arg-type]
