"""How many examples a property is tried on: all with PACKTRAIN_EXAMPLES=full, as `.ci/run` sets it, else a quarter."""

import os

from hypothesis import HealthCheck, settings

FULL = os.environ.get("PACKTRAIN_EXAMPLES") == "full"


def examples(full: int, **more: object) -> settings:
    """`full` examples, or a quarter of them but at least 25; `more` as `hypothesis.settings` takes it."""
    count = full if FULL else min(full, max(25, full // 4))
    # What hypothesis says of the first examples and of their time depends on luck and on the machine, not on the code.
    return settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck), **more)  # type: ignore[arg-type]
