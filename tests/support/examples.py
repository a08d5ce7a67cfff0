"""How many examples a property is tried on: all with PACKTRAIN_EXAMPLES=full, as `.ci/run` sets it, else a quarter."""

import os

from hypothesis import settings

FULL = os.environ.get("PACKTRAIN_EXAMPLES") == "full"


def examples(full: int, **more: object) -> settings:
    """`full` examples, or a quarter of them but at least 25; `more` as `hypothesis.settings` takes it."""
    return settings(max_examples=full if FULL else min(full, max(25, full // 4)), **more)  # type: ignore[arg-type]
